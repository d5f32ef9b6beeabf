"""Limits the memory or the number of processes of a few processes, with cgroups.

Two layouts exist, cgroups(7): one folder for each controller (version 1), or one folder
for all (version 2). A group is removed when its processes have left it or ended.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
LIMITS = {
    "memory": ("memory.limit_in_bytes", "memory.max"),
    "pids": ("pids.max", "pids.max"),
}
"""The file that has the limit, by controller: in version 1, and in version 2."""


@contextmanager
def limited(controller: str, limit: int, pids: Iterable[int]) -> Iterator[None]:
    """Limit processes during the block.

    Only memory that they allocate from now on counts. Memory that they already have
    stays charged to the old group.

    Args:
        controller: ``memory``, whose limit is in bytes, or ``pids``, in processes.
        limit: the limit for all processes together.
        pids: the processes; their children are limited, too.

    Raises:
        OSError: this process may not make control groups.
    """
    parent = parent_of(controller)
    group = parent / f"sts-{os.getpid()}-{os.urandom(4).hex()}"
    group.mkdir()
    try:
        (group / file_of(controller)).write_text(str(limit))
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        leave(group, parent)


def parent_of(controller: str) -> Path:
    """Return the folder in which groups of a controller are made."""
    own = ROOT / controller
    return own if own.is_dir() else ROOT


def file_of(controller: str) -> str:
    """Return the name of the file that has the limit."""
    first, second = LIMITS[controller]
    return first if parent_of(controller) != ROOT else second


def leave(group: Path, parent: Path) -> None:
    """Move live processes back to the parent group, and remove the group."""
    for pid in (group / "cgroup.procs").read_text().split():
        with suppress(ProcessLookupError):
            (parent / "cgroup.procs").write_text(pid)
    group.rmdir()


def why_not(controller: str) -> str:
    """Return why no group of a controller can be made here, or ``""``."""
    try:
        with limited(controller, 1 << 40 if controller == "memory" else 1 << 15, ()):
            return ""
    except OSError as error:
        return f"no control group for {controller} can be made: {error.strerror}"
