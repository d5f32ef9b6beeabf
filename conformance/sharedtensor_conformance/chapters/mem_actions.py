"""Actors that write and read the same memory concurrently, without the test.

Each actor gets one request. So there is no remote call between a write in one process
and the read in another, and only microseconds pass.
"""

from __future__ import annotations

import os
import signal
from typing import Any, Protocol

from sharedtensor_conformance.chapters.message_actions import MAX_WRONG_READINGS
from sharedtensor_conformance.chapters.process_actions import end
from sharedtensor_conformance.harness.remote.actor import Actor

READS_PER_CHECK = 50
"""The number of readings between two checks for the message that ends the reading."""


class Turns(Protocol):
    """How processes wait for their turn to write, and pass it on."""

    def take(self, place: int) -> None:
        """Wait until it is the turn of the process at `place`."""

    def give(self, place: int) -> None:
        """End the turn of the process at `place`."""


class MessageTurns:
    """Turns that are passed on by messages with no content."""

    def __init__(self, actor: Actor, names: list[str], channel: str) -> None:
        self._actor = actor
        self._names = names
        self._channel = channel

    def take(self, place: int) -> None:
        """Get the message of the process before this one."""
        self._actor.get(self._names[place - 1], self._channel)

    def give(self, place: int) -> None:
        """Put a message for the process after this one."""
        following = self._names[(place + 1) % len(self._names)]
        self._actor.put(following, self._channel, None)


class PrimitiveTurns:
    """Turns of two processes, with one lock or semaphore for each.

    A process waits by acquiring its own primitive, and the other process releases it. A
    primitive that is made without `arguments` is free at first, so the initializer
    acquires it.
    """

    def __init__(self, context: Any, maker: str, *arguments: Any) -> None:
        self._own = [getattr(context, maker)(*arguments) for _ in range(2)]
        if not arguments:
            for lock in self._own:
                lock.acquire()

    def take(self, place: int) -> None:
        """Acquire the primitive of this process, which the other process releases."""
        self._own[place].acquire()

    def give(self, place: int) -> None:
        """Release the primitive of the other process."""
        self._own[1 - place].release()


class EventTurns:
    """Turns of two processes, with one event for each."""

    def __init__(self, context: Any) -> None:
        self._own = [context.Event() for _ in range(2)]

    def take(self, place: int) -> None:
        """Wait for the event of this process, which the other process sets."""
        self._own[place].wait()
        self._own[place].clear()

    def give(self, place: int) -> None:
        """Set the event of the other process."""
        self._own[1 - place].set()


class ConditionTurns:
    """Turns of two processes, with one condition for each.

    A notification wakes only a process that already waits. So a process that is going
    to wait releases a semaphore while it holds the lock of its condition, and the other
    process acquires this semaphore before it notifies.
    """

    def __init__(self, context: Any) -> None:
        self._own = [context.Condition() for _ in range(2)]
        self._waits = [context.Semaphore(0) for _ in range(2)]

    def take(self, place: int) -> None:
        """Wait for the condition of this process, which the other process notifies."""
        with self._own[place]:
            self._waits[place].release()
            self._own[place].wait()

    def give(self, place: int) -> None:
        """Notify the other process, once it waits."""
        other = 1 - place
        self._waits[other].acquire()
        with self._own[other]:
            self._own[other].notify()


class BarrierTurns:
    """Turns of two processes with one barrier, at which each wait ends a turn."""

    def __init__(self, context: Any) -> None:
        self._barrier = context.Barrier(2)

    def take(self, place: int) -> None:
        """Wait for the other process."""
        self._barrier.wait()

    give = take


PRIMITIVES = {
    "lock": lambda context: PrimitiveTurns(context, "Lock"),
    "semaphore": lambda context: PrimitiveTurns(context, "Semaphore", 0),
    "bounded semaphore": lambda context: PrimitiveTurns(context, "BoundedSemaphore"),
    "event": EventTurns,
    "condition": ConditionTurns,
    "barrier": BarrierTurns,
}
"""The primitives by which two processes can take turns, by name. Each function makes
`Turns` from a context.
"""


def make_turns(actor: Actor, primitive: str, method: str) -> Any:
    """Return turns of two processes.

    Args:
        actor: the actor.
        primitive: one of `PRIMITIVES`.
        method: the start method of the drop-in's context that makes the primitive.
    """
    context = actor.context(method)
    return actor.by_implementation(lambda: PRIMITIVES[primitive](context))


def make_lock(actor: Actor, kind: str, method: str) -> Any:
    """Return a ``Lock`` or an ``RLock`` of the drop-in's context."""
    context = actor.context(method)
    return actor.by_implementation(getattr(context, kind))


def write_in_turn_by_messages(
    actor: Actor, names: list[str], channel: str, tensors: list[Any], rounds: int
) -> list[str]:
    """Call `take_turns`; the actors of `names` pass the turns on by messages."""
    turns = MessageTurns(actor, names, channel)
    return take_turns(actor, turns, names.index(actor.name), tensors, rounds)


def take_turns(
    actor: Actor, turns: Any, place: int, tensors: list[Any], rounds: int
) -> list[str]:
    """Write to the tensor of this process in each round, and read those of the others.

    `tensors` and the turns have the same order, and `place` is the position of this
    process. In its turn, a process expects the number of this round in the tensors
    before its own, and the number of the previous round in those after its own. The
    first process writes at the beginning of a round. It reads after the turns of all
    others.

    Returns:
        The unexpected readings as sentences, at most `MAX_WRONG_READINGS`.
    """
    wrong: list[str] = []
    for number in range(1, rounds + 1):
        if place == 0:
            write_all(actor, tensors[0], number)
            turns.give(0)
        turns.take(place)
        for other, tensor in enumerate(tensors):
            due = number if other < place or place == 0 else number - 1
            found = actor.call("values", tensor)
            if other != place and found != [due] * len(found):
                wrong.append(f"round {number}: {found} from {other}, not {due}")
        if place != 0:
            write_all(actor, tensors[place], number)
            turns.give(place)
    return wrong[:MAX_WRONG_READINGS]


def write_all(actor: Actor, tensor: Any, value: int) -> None:
    """Write one value to all elements, from the last to the first."""
    for index in reversed(range(actor.call("shape", tensor)[0])):
        actor.call("write", tensor, (index,), value)


def add_under_a_lock(actor: Actor, lock: Any, tensor: Any, times: int) -> None:
    """Add 1 to the first element `times` times, each time with the lock held."""
    for _ in range(times):
        with lock:
            before = actor.call("read", tensor, (0,))
            actor.call("write", tensor, (0,), before + 1)


def write_and_end(actor: Actor, tensor: Any, value: int, how: str) -> None:
    """Write `value` to all elements, and end this process at once.

    Args:
        actor: the actor.
        tensor: the tensor.
        value: the value.
        how: ``by SIGKILL``, ``by returning``, or as for `process_actions.end`.
    """
    write_all(actor, tensor, value)
    if how == "by SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "by returning":
        actor.leaving = True
    else:
        end(actor, how)


def write_while_read(
    actor: Actor, tensor: Any, values: list[int], times: int, reader: str, channel: str
) -> None:
    """Write `values` to the first element in a cycle, `times` times in all.

    The first write waits for a message of the reader. After the last write, the reader
    gets a message.
    """
    actor.get(reader, channel)
    for number in range(times):
        actor.call("write", tensor, (0,), values[number % len(values)])
    actor.put(reader, channel, None)


def read_while_written(
    actor: Actor, tensor: Any, writer: str, channel: str
) -> list[int]:
    """Read the first element until the writer ends; return the values found, sorted."""
    actor.put(writer, channel, None)
    found: set[int] = set()
    while not actor.has_message(writer, channel):
        found.update(actor.call("read", tensor, (0,)) for _ in range(READS_PER_CHECK))
    actor.get(writer, channel)
    return sorted(found)
