"""Keeps the descriptors that cases have in flight within what the system permits.

A descriptor that was sent over a socket and not yet received is in flight. All programs
of an ordinary user together may have as many in flight as a process may have open
(RLIMIT_NOFILE; unix(7), ETOOMANYREFS). So a case with many of them could break the
cases of another worker, or of another run by the same user.

A test with many descriptors in flight declares how many (`clause(..., in_flight=300)`),
and its cases take these from a budget that all runs of the user have in common. So does
a test that leaves a process few descriptors: its low limit is also one of what others
have in flight beside it.

The budget consists of names of sockets in the abstract namespace, unix(7): a name
belongs to one process at a time, and the kernel frees it when the process has ended. So
nothing is left, however a run ends. The other half of what the system permits is for
all others.

Cases that need gigabytes take turns in the same way (`clause(..., large=True)`).
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Callable, Iterator

from sharedtensor_conformance.harness.case.outcomes import NotRun
from sharedtensor_conformance.harness.kernel.process_tree import status, wait_until
from sharedtensor_conformance.report.verdicts import Need

ENOUGH_OPEN_FILES = 1 << 16
"""The limit of open files that a run asks for, where the hard limit permits it."""

SHARE = 64
"""Descriptors that one name of the budget stands for."""

BUDGET = f"sts-in-flight-{os.getuid()}"
"""What the names of the budget begin with: all runs of a user have it in common."""

TIMEOUT = 300.0
"""Seconds to wait for the cases of others."""

_EXEMPT = 1 << 21 | 1 << 24  # CAP_SYS_ADMIN, CAP_SYS_RESOURCE: capabilities(7)
_INITIAL_NAMESPACE = ["0", "0", str(2**32 - 1)]  # its uid_map, user_namespaces(7)


def raise_limit() -> Callable[[], None]:
    """Raise the limit of open files of this process, and of all that it starts.

    Returns a function that restores it.
    """
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH_OPEN_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(hard, wanted)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, before)


def permitted() -> int | None:
    """Return how many descriptors this user may have in flight; None if any number."""
    with open("/proc/self/uid_map") as file:
        is_initial = file.read().split() == _INITIAL_NAMESPACE
    if is_initial and int(status(os.getpid())["CapEff"], 16) & _EXEMPT:
        return None
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


@contextlib.contextmanager
def taking(count: int) -> Iterator[None]:
    """Take `count` descriptors from the budget for the time of the block.

    A process that holds a part of it already takes nothing more, since it would wait
    for itself.

    Raises:
        NotRun: the budget is smaller, or other runs do not return it.
    """
    limit = permitted() if count else None
    if limit is None or _Part.is_taken:
        yield
        return
    needed = -(-count // SHARE)
    available = limit // 2 // SHARE
    if needed > available:
        raise NotRun(
            f"up to {count} descriptors are in flight in this case, and of the {limit} "
            f"that this user may have in flight the suite uses at most half",
            Need.DESCRIPTORS,
        )
    with contextlib.ExitStack() as taken:
        with contextlib.ExitStack() as turn:  # in turn, so that no one starves
            _wait_for(turn, "turn", 1, 1, Need.DESCRIPTORS)
            _wait_for(taken, "share", needed, available, Need.DESCRIPTORS)
        _Part.is_taken = True
        taken.callback(setattr, _Part, "is_taken", False)
        yield


@contextlib.contextmanager
def taking_turns(large: bool) -> Iterator[None]:
    """Run the block while no other `large` case of this user runs.

    Raises:
        NotRun: another run does not finish such a case.
    """
    with contextlib.ExitStack() as turn:
        if large:
            _wait_for(turn, "large", 1, 1, Need.MEMORY)
        yield


class _Part:
    """Whether this process has a part of the budget."""

    is_taken = False


def _wait_for(
    taken: contextlib.ExitStack, kind: str, needed: int, of: int, need: Need
) -> None:
    if not wait_until(lambda: _take(taken, kind, needed, of), TIMEOUT):
        what = "memory" if need is Need.MEMORY else "descriptors in flight"
        raise NotRun(
            f"another run of the suite by this user has had {what} for {TIMEOUT:g} s",
            need,
        )


def _take(taken: contextlib.ExitStack, kind: str, needed: int, of: int) -> bool:
    """Bind `needed` of the names of a kind, or none; return whether that succeeded."""
    with contextlib.ExitStack() as found:
        count = 0
        for number in range(of):
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.bind(f"\0{BUDGET}-{kind}-{number}")
            except OSError:
                sock.close()
                continue
            found.enter_context(sock)
            count += 1
            if count == needed:
                taken.enter_context(found.pop_all())
                return True
    return False
