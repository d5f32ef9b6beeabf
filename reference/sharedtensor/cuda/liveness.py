"""Who is alive: what stays after a process must be attributable to a dead one.

A pid alone is no identity, since the kernel gives it out again. A pid and the
time at which that process started are one.
"""

from __future__ import annotations

import functools
import os
from typing import NamedTuple

from ..errors import pass_on


class Identity(NamedTuple):
    """A process: its pid, and its start in clock ticks since boot."""

    pid: int
    start: int


def identity_of(pid: int) -> Identity | None:
    """Return the identity of a living process; None for a dead one or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name, in brackets, may itself contain brackets and blanks.
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError) as error:
        pass_on(error)
        return None
    return None if fields[0] in (b"Z", b"X") else Identity(pid, int(fields[19]))


@functools.cache
def own_identity() -> Identity:
    """Return the identity of this process."""
    identity = identity_of(os.getpid())
    assert identity is not None, "a process that runs is alive"
    return identity


os.register_at_fork(after_in_child=own_identity.cache_clear)


def is_alive(pid: int, start: int) -> bool:
    """Return whether the process that had this pid at that start still runs."""
    return identity_of(pid) == (pid, start)
