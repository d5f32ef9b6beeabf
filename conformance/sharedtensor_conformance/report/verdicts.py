"""Verdicts: what the suite says of a case, of a clause and of a run.

Glossary: a *case* is one test in one configuration; a *clause* is as bad as its worst
case; a *run* conforms when every MUST of the claimed profiles was judged and held.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Verdict(StrEnum):
    """The verdict of a case, worst first."""

    ERROR = "error"  # the suite's own fault, or the adapter's
    CRASH = "crash"  # a process of the implementation died
    HANG = "hang"  # it did not finish within its deadline
    FAIL = "fail"  # it finished and the clause does not hold
    BLOCKED = "blocked"  # the smoke test failed, or no process could be started
    FOLLOWS = "follows"  # not run: a known deviation, of which one case was confirmed
    NOT_RUN = "not-run"  # no such device, privilege or system here
    UNSUPPORTED = "unsupported"  # not claimed, or nothing there to judge
    PASS = "pass"

    @property
    def judged(self) -> bool:
        """Whether the case says anything about the implementation."""
        return self in JUDGED

    @property
    def broken(self) -> bool:
        """Whether the case speaks against the implementation or the suite."""
        return self in BROKEN


BROKEN = frozenset(
    {Verdict.ERROR, Verdict.CRASH, Verdict.HANG, Verdict.FAIL, Verdict.BLOCKED}
)
JUDGED = frozenset({Verdict.CRASH, Verdict.HANG, Verdict.FAIL, Verdict.PASS})
WORST_FIRST = tuple(Verdict)

ONE_DEVICE = "there is one device, and this needs two"
"""Why a case is not run that could not fail where there is no other device."""


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of `verdicts`; ``not-run`` where there is none."""
    return min(verdicts, key=WORST_FIRST.index, default=Verdict.NOT_RUN)


def of_clause(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict of a clause from those of its cases.

    A clause is as bad as its worst broken case. Cases that were not run or not
    supported in some configuration do not spoil one that held elsewhere, but a clause
    that no case judged is not held, nor is one of which a case follows from a known
    deviation.
    """
    seen = set(verdicts)
    if broken := seen & BROKEN:
        return worst(broken)
    if Verdict.FOLLOWS in seen:
        return Verdict.FOLLOWS
    return Verdict.PASS if Verdict.PASS in seen else worst(seen)
