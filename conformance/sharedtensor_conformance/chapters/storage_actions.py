"""Actions that make, send and drop many storages, and check them in their process.

All elements of a tensor have the same value, and no other tensor has this value. So two
storages that overlap or are mixed up are detected. A test gets only the numbers of
wrong tensors.
"""

from __future__ import annotations

from typing import Any

from sharedtensor_conformance.harness.remote.actor import Actor


class NumberedTensors:
    """The tensors of a process by number, which is the value of all their elements.

    A tensor that the process received several times is in its list several times.
    """

    def __init__(self) -> None:
        self.tensors: dict[int, list[Any]] = {}


def new_storages(actor: Actor) -> Any:
    """Return an empty collection."""
    return NumberedTensors()


def make_storages(actor: Actor, held: Any, first: int, lengths: list[int]) -> None:
    """Make a tensor of each length, numbered from `first` on."""
    for number, length in enumerate(lengths, first):
        made = actor.call("make", [number] * length, (length,), "int32")
        held.tensors.setdefault(number, []).append(made)


def put_storages(
    actor: Actor, held: Any, numbers: list[int], to: str, channel: str
) -> None:
    """Put the tensors of these numbers in one message."""
    payload = [[number, held.tensors[number][-1]] for number in numbers]
    actor.put(to, channel, payload)


def get_storages(actor: Actor, held: Any, sender: str, channel: str) -> list[int]:
    """Get a message of `put_storages`, keep its tensors, and return their numbers."""
    payload = actor.get(sender, channel)
    for number, tensor in payload:
        held.tensors.setdefault(number, []).append(tensor)
    return [number for number, _ in payload]


def drop_storages(actor: Actor, held: Any, numbers: list[int]) -> None:
    """Drop all tensors with these numbers."""
    for number in numbers:
        for tensor in held.tensors.pop(number, []):
            actor.call("release", tensor)


def rewrite_storages(actor: Actor, held: Any, numbers: list[int], value: int) -> None:
    """Write number + `value` to the first and the last element of each tensor."""
    for number in numbers:
        tensor = held.tensors[number][0]
        (length,) = actor.call("shape", tensor)
        for index in {0, length - 1} if length else ():
            actor.call("write", tensor, (index,), number + value)


def wrong_storages(actor: Actor, held: Any, added: dict[int, int]) -> list[int]:
    """Return the numbers of the tensors with wrong values.

    Args:
        actor: the process.
        held: its tensors.
        added: the values added to both ends of written tensors.
    """
    wrong = []
    for number, tensors in held.tensors.items():
        for tensor in tensors:
            found = actor.call("values", tensor)
            due = [number] * len(found)
            if due:
                due[0] = due[-1] = number + added.get(number, 0)
            if found != due:
                wrong.append(number)
    return wrong


def share_storages(actor: Actor, held: Any) -> None:
    """Share all tensors, so that a child that is forked later uses the same memory."""
    for tensors in held.tensors.values():
        for tensor in tensors:
            actor.call("share", tensor)
