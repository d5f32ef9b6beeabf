"""Defines the verdicts of cases, and the verdict of a clause from those of its cases.

A *case* is one test in one configuration. A *clause* is as bad as its worst case. A
*run* conforms if every MUST of the claimed profiles was judged and held.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Verdict(StrEnum):
    """The verdict of a case, worst first."""

    ERROR = "error"  # a fault of the suite or the adapter
    CRASH = "crash"  # a process of the implementation died
    HANG = "hang"  # it did not finish within its deadline
    FAIL = "fail"  # it finished and the clause does not hold
    BLOCKED = "blocked"  # the smoke test failed, or no process could be started
    FOLLOWS = "follows"  # not run: another case confirmed the same known deviation
    NOT_RUN = "not-run"  # the machine lacks a device, a privilege or a system feature
    UNSUPPORTED = "unsupported"  # not claimed, or nothing there to judge
    PASS = "pass"

    @property
    def judged(self) -> bool:
        """Whether a case with this verdict judged the implementation."""
        return self in JUDGED

    @property
    def broken(self) -> bool:
        """Whether it is a failure of the implementation, the adapter or the suite."""
        return self in BROKEN


BROKEN = frozenset(
    {Verdict.ERROR, Verdict.CRASH, Verdict.HANG, Verdict.FAIL, Verdict.BLOCKED}
)
JUDGED = frozenset({Verdict.CRASH, Verdict.HANG, Verdict.FAIL, Verdict.PASS})
WORST_FIRST = tuple(Verdict)

ONE_DEVICE = "there is one device, and this needs two"
"""The reason for not running a case that needs two devices."""


class Need(StrEnum):
    """What a machine has to permit, where a case can be judged only then."""

    SECOND_USER = "a second user"
    PRIVATE_SHM = "a private /dev/shm"
    PID_NAMESPACE = "a namespace of process ids"
    CALL_FILTER = "a filter of system calls"
    DESCRIPTORS = "a higher limit of open files"
    FEW_MAPPINGS = "a lower limit of mappings"
    MEMORY = "more free memory"

    @property
    def remedy(self) -> str:
        """How to run the suite so that the machine permits it."""
        return REMEDIES[self]


_NAMESPACES = "permit user namespaces, or run the suite as root with CAP_SYS_ADMIN"

REMEDIES: dict[Need, str] = {
    Need.SECOND_USER: "install newuidmap (package uidmap), give the user ids in "
    f"/etc/subuid and /etc/subgid, and {_NAMESPACES}",
    Need.PRIVATE_SHM: _NAMESPACES,
    Need.PID_NAMESPACE: "run the suite as root with CAP_SYS_ADMIN",
    Need.CALL_FILTER: "use a kernel with seccomp, on x86-64 or ARM64",
    Need.DESCRIPTORS: "raise the hard limit of open files (nofile in limits.conf)",
    Need.FEW_MAPPINGS: "lower vm.max_map_count (sysctl)",
    Need.MEMORY: "use a machine or a container with more memory and a larger /dev/shm",
}


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of `verdicts`; ``not-run`` if there are none."""
    return min(verdicts, key=WORST_FIRST.index, default=Verdict.NOT_RUN)


def of_clause(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict of a clause from those of its cases.

    A clause is as bad as its worst broken case. A clause that held in some cases holds
    even if other cases were not run or not supported. A clause that no case judged is
    not held. A clause is not held if one of its cases follows from a known deviation.
    """
    seen = set(verdicts)
    if broken := seen & BROKEN:
        return worst(broken)
    if Verdict.FOLLOWS in seen:
        return Verdict.FOLLOWS
    return Verdict.PASS if Verdict.PASS in seen else worst(seen)
