"""Actions for the tests of channels alone: containers, bare bytes, and sizes."""

from __future__ import annotations

import collections
import threading
import time
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

from sharedtensor_conformance.chapters.message_actions import bytes_of_size
from sharedtensor_conformance.chapters.process_actions import (
    exit_code,
    new_semaphore,
    started_process,
)
from sharedtensor_conformance.chapters.worker_tasks import add_when_written
from sharedtensor_conformance.harness.remote.actor import Actor
from sharedtensor_conformance.harness.remote.marks import starts_processes

CONTAINERS = [
    set(),
    {1, 2.5, "three", b"four", None, (5, frozenset({6}))},
    frozenset({"seven", 8}),
    collections.deque([9, {10}, "eleven"]),
    {"twelve": {13}, frozenset({14}): [{15}, ({16},)]},
]
"""Containers of plain values, with others than lists, tuples and dictionaries."""

SLOW_PICKLING = 0.5
"""Seconds for which a thread that pickles for another one is held up."""

SEND_BYTES_FORMS: dict[str, Callable[[Any, bytes], None]] = {
    "bytes": lambda end, content: end.send_bytes(content),
    "bytearray": lambda end, content: end.send_bytes(bytearray(content)),
    "memoryview": lambda end, content: end.send_bytes(memoryview(content)),
    "large items": lambda end, content: end.send_bytes(
        memoryview(content).cast("Q") if len(content) % 8 == 0 else content
    ),
    "array": lambda end, content: end.send_bytes(array("B", content)),
    "from an offset": lambda end, content: end.send_bytes(b"abc" + content, 3),
    "a part": lambda end, content: end.send_bytes(
        b"abc" + content + b"defg", 3, len(content)
    ),
}
"""The ways to pass bytes to `send_bytes`."""


def put_containers(actor: Actor, to: str, channel: str, tensor: Any) -> None:
    """Put each of the `CONTAINERS`, and then all of them with a tensor."""
    for container in CONTAINERS:
        actor.put(to, channel, container)
    actor.put(to, channel, [*CONTAINERS, tensor])


def get_containers(actor: Actor, sender: str, channel: str) -> tuple[list[str], Any]:
    """Get what `put_containers` puts.

    Returns:
        The containers that arrive otherwise, as texts, and the tensor.
    """
    alone = [actor.get(sender, channel) for _ in CONTAINERS]
    *together, tensor = actor.get(sender, channel)
    sent = [*CONTAINERS, *CONTAINERS]
    pairs = zip([*alone, *together], sent, strict=True)
    wrong = [
        f"{found!r} and not {due!r}"
        for found, due in pairs
        if type(found) is not type(due) or found != due
    ]
    return wrong, tensor


def _send_bytes(channel: Any, form: str, content: bytes, back: bool) -> None:
    SEND_BYTES_FORMS[form](channel.reader if back else channel.writer, content)


def put_bytes_of_sizes(
    actor: Actor, channel: Any, sizes: list[int], form: str, back: bool = False
) -> None:
    """Send bytes of each size on a pipe, in one of the forms of `SEND_BYTES_FORMS`.

    `back` means from the reading end of a duplex pipe to its other end.
    """
    for size in sizes:
        actor.by_implementation(
            partial(_send_bytes, channel, form, bytes_of_size(size), back)
        )


def get_bytes_of_sizes(
    actor: Actor, channel: Any, sizes: list[int], back: bool = False
) -> list[int]:
    """Receive bytes of each size; return the sizes of those that differ.

    The receiver alternates between four maximum lengths: none, the size itself, and two
    larger ones.
    """
    wrong, end = [], channel.writer if back else channel.reader
    for number, size in enumerate(sizes):
        bounds = ((), (size,), (size + 1,), (2 * size + 300,))[number % 4]
        received: bytes = actor.by_implementation(partial(end.recv_bytes, *bounds))
        if received != bytes_of_size(size):
            wrong.append(size)
    return wrong


def finish_tasks(actor: Actor, channel: Any, count: int) -> None:
    """Say of `count` messages of a joinable queue that they are done."""
    for _ in range(count):
        actor.by_implementation(channel.task_done)


class SlowInOtherThreads:
    """An object that is pickled slowly in another thread than the one that made it.

    A call that leaves the pickling to a thread returns before that thread is done.
    """

    def __init__(self) -> None:
        self._thread = threading.current_thread()

    def __reduce__(self) -> Any:
        if threading.current_thread() is not self._thread:
            time.sleep(SLOW_PICKLING)
        return str, ("it was pickled",)


@starts_processes
def start_and_write(
    actor: Actor, tensors: list[Any], value: int, method: str
) -> tuple[list[bool], int | None]:
    """Start a process with tensors, and write `value` to each when `start` returns.

    The process waits for these writes. Then it adds 1 to each tensor, and ends.

    Returns:
        For each tensor whether it was shared when `start` had returned, and the exit
        code.
    """
    written = new_semaphore(actor, method)
    payload = [SlowInOtherThreads(), *actor.outgoing(tensors)]
    process = started_process(actor, method, add_when_written, payload, written)
    shared = [actor.call("is_shared", tensor) for tensor in tensors]
    for tensor in tensors:
        actor.call("write", tensor, (0,), value)
    written.release()
    return shared, exit_code(process)


@starts_processes
def pass_on_in_a_fork(actor: Actor, arrives: Any, leaves: Any) -> int | None:
    """Let a forked child add 1 to a tensor from one channel, and put it on another.

    Then the child waits for another message, and ends. Return its exit code.
    """

    def pass_on() -> None:
        tensor = actor.get_from(arrives)
        actor.call("write", tensor, (0,), actor.call("read", tensor, (0,)) + 1)
        actor.put_on(leaves, tensor)
        actor.get_from(arrives)

    process = actor.context("fork").Process(target=pass_on)
    actor.by_implementation(process.start)
    return exit_code(process)
