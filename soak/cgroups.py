"""Control groups that take memory or process slots away from a few processes.

Two layouts exist, cgroups(7): one folder a controller (version 1), or one folder for
all (version 2). What is made here is removed when its processes have left it or ended.
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
    """Keep processes within a limit for the block.

    Memory that they have already stays charged where it was (version 1), or moves not
    at all (version 2); only what they take from now on counts.

    Args:
        controller: ``memory``, whose limit is in bytes, or ``pids``, in processes.
        limit: what the processes may have together.
        pids: the processes; what they start belongs to them.

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
    """Move what lives on back to the parent, and remove the group."""
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
