"""The work of loader processes, for tests of data loading with many batches.

The controller makes one request, and the processes exchange hundreds of batches without
further remote calls, so that a fault in one of a hundred batches is found.

The first argument of each action is the actor.
"""

from __future__ import annotations

from typing import Any

from sharedtensor_conformance.harness.actions import content
from sharedtensor_conformance.harness.concurrency import WRONG_AT_MOST

# Batches that are made anew


def put_batches(actor: Any, channel: Any, first: int, count: int, size: int) -> None:
    """Put so many batches, numbered from `first` on, and keep none of them.

    A batch is its number, a tensor of two elements, and so many bytes.
    """
    for number in range(first, first + count):
        tensor = actor.call("make", [number, -number], (2,), "float32")
        actor.do_channel_put(channel, [number, tensor, content(size)])


def get_batches(actor: Any, channel: Any, first: int, count: int, size: int) -> Any:
    """Get so many batches of one worker, keep none, and return the wrong ones."""
    wrong = []
    for due in range(first, first + count):
        number, tensor, text = actor.do_channel_get(channel)
        values = actor.call("values", tensor)
        if (number, values, text) != (due, [due, -due], content(size)):
            wrong.append([due, number, values])
        del tensor
    return wrong[:WRONG_AT_MOST]


# Buffers that come back


def fill_buffers(actor: Any, empty: Any, filled: Any) -> None:
    """Fill each buffer that comes back with its next number, until there is no more.

    A buffer comes with its place and the number that is to be in it. None ends it.
    """
    while (task := actor.do_channel_get(empty)) is not None:
        place, number, buffer = task
        del task
        for index in range(actor.call("shape", buffer)[0]):
            actor.call("write", buffer, (index,), number)
        actor.do_channel_put(filled, [place, number, buffer])
        del buffer


def use_buffers(
    actor: Any, empty: Any, filled: Any, made: list[Any], rounds: int
) -> list[Any]:
    """Let each buffer be filled so many times; return what was read that was not due.

    It is read where it comes back and through the tensor that was `made`, which stays.
    """
    wrong: list[Any] = []
    for place, tensor in enumerate(made):
        actor.do_channel_put(empty, [place, 0, tensor])
    for _ in range(rounds * len(made)):
        place, number, buffer = actor.do_channel_get(filled)
        found = [actor.call("values", one) for one in (buffer, made[place])]
        if found != [[number] * len(found[0])] * 2:
            wrong.append([place, number, found])
        if number + 1 < rounds:
            actor.do_channel_put(empty, [place, number + 1, buffer])
        del buffer
    return wrong[:WRONG_AT_MOST]
