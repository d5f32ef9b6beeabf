"""What a process has in shared memory, for mutants that do something to all of it."""

from __future__ import annotations

from typing import Any


def held_storages() -> list[Any]:
    """Return the shared storages that this process has."""
    from sharedtensor import state

    segments = list(state.segments.values())
    parts = [part() for one in segments for part in list(one.storages.values())]
    return [part for part in parts if part is not None]


def held_alone() -> list[Any]:
    """Return those that have a segment to themselves."""
    return [one for one in held_storages() if len(one.segment.storages) == 1]


def private_segment(nbytes: int) -> Any:
    """Return what looks like a segment, and is private memory full of zeros."""
    from sharedtensor import memory, strategies

    made = strategies.Resource(strategies.FileDescriptor(), "", nbytes)
    made.mapping = memory.Memory(nbytes)
    return strategies.Segment(made)
