"""Actions of the worker processes of data loaders, for tests with many batches.

The controller makes one request. Then the processes exchange hundreds of batches
without remote calls, so that a test finds a fault that occurs in one batch of a
hundred.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from sharedtensor_conformance.chapters.message_actions import (
    MAX_WRONG_READINGS,
    bytes_of_size,
)
from sharedtensor_conformance.harness.remote.actor import Actor


def send_from_reading_end(actor: Actor, channel: Any, count: int) -> None:
    """Send `count` messages from the reading end of a duplex pipe to its other end."""
    for number in range(count):
        actor.by_implementation(partial(channel.reader.send, number))


def put_batches(actor: Actor, channel: Any, first: int, count: int, size: int) -> None:
    """Put `count` batches, numbered from `first` on, and keep none of them.

    A batch has its number, a tensor of two elements, and `size` bytes.
    """
    for number in range(first, first + count):
        tensor = actor.call("make", [number, -number], (2,), "float32")
        actor.put_on(channel, [number, tensor, bytes_of_size(size)])


def get_batches(actor: Actor, channel: Any, first: int, count: int, size: int) -> Any:
    """Get `count` batches of one worker, keep none, and return the wrong ones.

    Returns:
        The expected number, the number and the values of each wrong batch, for at most
        `MAX_WRONG_READINGS` batches.
    """
    wrong = []
    for due in range(first, first + count):
        number, tensor, text = actor.get_from(channel)
        values = actor.call("values", tensor)
        if (number, values, text) != (due, [due, -due], bytes_of_size(size)):
            wrong.append([due, number, values])
        del tensor
    return wrong[:MAX_WRONG_READINGS]


def fill_buffers(actor: Actor, empty: Any, filled: Any) -> None:
    """Fill each buffer that comes back with its next number, until None comes.

    A message has the position of a buffer, the number to write, and the buffer.
    """
    while (task := actor.get_from(empty)) is not None:
        place, number, buffer = task
        del task
        for index in range(actor.call("shape", buffer)[0]):
            actor.call("write", buffer, (index,), number)
        actor.put_on(filled, [place, number, buffer])
        del buffer


def use_buffers(
    actor: Actor, empty: Any, filled: Any, made: list[Any], rounds: int
) -> list[Any]:
    """Let a worker fill each buffer `rounds` times, and return the wrong readings.

    Each buffer is read when it comes back, and also through the tensor in `made` that
    was sent for it.

    Returns:
        The position, the number and the two readings of each wrong buffer, for at most
        `MAX_WRONG_READINGS` buffers.
    """
    wrong: list[Any] = []
    for place, tensor in enumerate(made):
        actor.put_on(empty, [place, 0, tensor])
    for _ in range(rounds * len(made)):
        place, number, buffer = actor.get_from(filled)
        found = [actor.call("values", one) for one in (buffer, made[place])]
        if found != [[number] * len(found[0])] * 2:
            wrong.append([place, number, found])
        if number + 1 < rounds:
            actor.put_on(empty, [place, number + 1, buffer])
        del buffer
    return wrong[:MAX_WRONG_READINGS]
