"""Groups broken cases by their probable cause, with the most basic clause first.

One fault can break dozens of clauses. Expected failures are grouped by their cause, and
other failures by the signature of their evidence. This module declares which clauses
depend on which others, so that the reader of a report can start with the most basic
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sharedtensor_conformance.adapter import PROFILES
from sharedtensor_conformance.clauses import LEVELS, Clause
from sharedtensor_conformance.report.records import Case, ClauseResult, Summary
from sharedtensor_conformance.report.repeat import MANY_STEPS
from sharedtensor_conformance.report.signatures import is_mismatch, signature
from sharedtensor_conformance.report.verdicts import WORST_FIRST, Verdict

CHAPTERS = (
    "SHARE",
    "CHAN",
    "START",
    "RESHARE",
    "VIEW",
    "KIND",
    "MEM",
    "GRAD",
    "TRAIN",
    "API",
    "SPAWN",
    "STRAT",
    "FD",
    "FS",
    "LIFE",
    "THREAD",
    "LOAD",
    "FAIL",
    "ENV",
    "MGR",
    "SEC",
    "HANDLE",
    "FAULT",
    "CUDA",
)
"""The chapters of the spec, from the most basic one."""

RESTS_ON = {
    "values": ("SHARE-3",),
    "sharing": ("SHARE-3", "SHARE-1", "SHARE-2"),
}
"""The clauses that a clause depends on, by what it observes."""


@dataclass(frozen=True)
class Group:
    """Broken cases that probably have the same cause.

    Args:
        clauses: the clauses that they break, from the most basic one.
        cases: the cases.
        rests: whether some clauses are in the group because they depend on its others.
    """

    clauses: tuple[str, ...]
    cases: tuple[Case, ...]
    rests: bool = False

    @property
    def first(self) -> str:
        """The most basic clause."""
        return self.clauses[0]

    @property
    def others(self) -> tuple[str, ...]:
        """The clauses other than the most basic one."""
        return self.clauses[1:]

    @property
    def expected(self) -> bool:
        """Whether its cases are known deviations."""
        return self.cases[0].expected

    @property
    def cause(self) -> str:
        """The known cause of the deviation; empty if it was not expected."""
        return self.cases[0].cause

    @property
    def shown(self) -> Case:
        """The case that shows best how the most basic clause is broken."""
        return shortest(case for case in self.cases if self.first in case.clauses)


def groups_of(
    cases: Iterable[Case], summary: Summary, clauses: Mapping[str, Clause]
) -> list[Group]:
    """Return the broken cases in groups.

    The order is: unexpected before expected groups, then what was judged before what
    was blocked, then MUST before SHOULD, then from the most basic clause, then tests of
    few steps before those of many.
    """
    cases = list(cases)
    found: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        if case.verdict.broken:
            found.setdefault(_kind(case), []).append(case)
    order = _Order(summary.clauses)
    groups = [_group(members, order) for members in found.values()]
    groups.sort(key=order.of_group)
    return _joined(groups, cases, clauses, order)


def basic_first(ids: Iterable[str], results: Mapping[str, ClauseResult]) -> list[str]:
    """Return clauses in the order in which a reader should look at them."""
    return sorted(ids, key=_Order(results).of_clause)


def shortest(cases: Iterable[Case]) -> Case:
    """Return the case that shows best how a clause is broken.

    An unexpected failure is better than an expected one, a failure that always occurs
    is better than a state-dependent one, then the worst verdict, then a test of few
    steps, and then the shortest evidence.
    """
    return min(
        cases,
        key=lambda case: (
            case.expected,
            case.state_dependent,
            WORST_FIRST.index(case.verdict),
            case.test.startswith(MANY_STEPS),
            not case.evidence,
            len(case.evidence),
            case.id,
        ),
    )


class _Order:
    """The order of clauses: by level, profile (core first), chapter and number."""

    def __init__(self, results: Mapping[str, ClauseResult]) -> None:
        self._results = results
        self._profiles = list(PROFILES)

    def of_clause(self, id: str) -> tuple[int, int, int, int]:
        result = self._results[id]
        chapter, _, number = id.partition("-")
        return (
            LEVELS.index(result.level),
            _place(result.profile, self._profiles),
            _place(chapter, CHAPTERS),
            int(number),
        )

    def of_group(
        self, group: Group
    ) -> tuple[bool, bool, tuple[int, int, int, int], bool]:
        blocked = group.shown.verdict is Verdict.BLOCKED
        many_steps = group.shown.test.startswith(MANY_STEPS)
        return group.expected, blocked, self.of_clause(group.first), many_steps


def _place(name: str, known: Sequence[str]) -> int:
    return known.index(name) if name in known else len(known)


def _kind(case: Case) -> tuple[object, ...]:
    """Return the key of the group of a case."""
    if case.expected:
        return True, case.cause or case.clauses
    return False, signature(case) if case.evidence else case.clauses


def _group(cases: Iterable[Case], order: _Order, *, rests: bool = False) -> Group:
    members = tuple(cases)
    ids = {id for case in members for id in case.clauses}
    return Group(tuple(sorted(ids, key=order.of_clause)), members, rests)


def _joined(
    groups: list[Group],
    cases: Sequence[Case],
    clauses: Mapping[str, Clause],
    order: _Order,
) -> list[Group]:
    """Return the groups; a group that depends on another is merged into it."""
    joined: list[Group] = []
    for group in groups:
        place = next(
            (n for n, base in enumerate(joined) if _rests(group, base, cases, clauses)),
            None,
        )
        if place is None:
            joined.append(group)
        else:
            members = joined[place].cases + group.cases
            joined[place] = _group(members, order, rests=True)
    return joined


def _rests(
    group: Group, base: Group, cases: Sequence[Case], clauses: Mapping[str, Clause]
) -> bool:
    """Return whether the failures in `group` follow from those in `base`.

    That is so if both found wrong values, the first clause of `group` depends on a
    clause of `base`, and that clause held in no configuration in which `group` is
    broken.
    """
    if group.expected or base.expected:
        return False
    if not all(map(is_mismatch, (*group.cases, *base.cases))):
        return False
    if group.first not in clauses:
        return False
    roots = set(RESTS_ON.get(clauses[group.first].observes, ()))
    where = {_configuration(case) for case in group.cases}
    return any(
        not where & _held_where(root, cases) for root in roots & set(base.clauses)
    )


def _held_where(id: str, cases: Iterable[Case]) -> set[tuple[str, ...]]:
    judged = [c for c in cases if id in c.clauses and c.verdict.judged]
    return {_configuration(case) for case in judged if not case.verdict.broken}


def _configuration(case: Case) -> tuple[str, ...]:
    axes = case.axes
    return case.device, axes.get("strategy", ""), axes.get("start_method", "")
