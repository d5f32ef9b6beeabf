"""The adapter over the standard library, with segments that are kept for later use.

A process keeps the first segments that it is done with and removes the others: a cache,
or an arena, as the ledger sees it.
"""

from __future__ import annotations

import os
from dataclasses import replace
from multiprocessing.shared_memory import SharedMemory

from sharedtensor_conformance.adapters import stdlib

OF_EACH_PROCESS = 6

_kept: list[SharedMemory] = []
_close = stdlib.close


def _keep(segment: SharedMemory) -> None:
    """Keep a segment with one descriptor: that of its mapping."""
    os.close(segment._fd)  # type: ignore[attr-defined]
    segment._fd = -1  # type: ignore[attr-defined]
    _kept.append(segment)


def close_or_keep(segment: SharedMemory, made_here: bool) -> None:
    """Keep what this process has made, up to its limit."""
    if made_here and len(_kept) < OF_EACH_PROCESS:
        _keep(segment)
    else:
        _close(segment, made_here)


def keep(segment: SharedMemory, made_here: bool) -> None:
    """Keep whatever this process has made."""
    _keep(segment) if made_here else _close(segment, made_here)


class Bounded(stdlib.StdlibOperations):
    """It keeps a few."""

    closing = staticmethod(close_or_keep)

    def enter_child(self, strategy: str) -> None:
        super().enter_child(strategy)
        stdlib.close = self.closing


class Unbounded(Bounded):
    """It keeps all."""

    closing = staticmethod(keep)


_few = replace(
    stdlib.conformance_adapter,
    operations=f"{__name__}:Bounded",
    start_methods=("fork",),
    channels=("pipe",),
    grace=1.0,
    preload=False,
)
declared = replace(_few, name="declared", kept_segments=OF_EACH_PROCESS)
undeclared = replace(_few, name="undeclared")
unbounded = replace(declared, name="unbounded", operations=f"{__name__}:Unbounded")
