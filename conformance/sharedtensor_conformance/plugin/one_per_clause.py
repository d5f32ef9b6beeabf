"""Chooses one case for each clause, for a quick check of the whole spec.

This is the cheapest way to look for unknown faults, and to check that a mutant breaks
no other clauses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from sharedtensor_conformance.harness.case.axes import Configuration
from sharedtensor_conformance.harness.case.marking import Marking

Case = TypeVar("Case")

MAX_CLAUSES = 4
"""A case that cites more clauses than this is chosen only if no other case is left."""


def one_per_clause(
    cases: Sequence[Case],
    marking_of: Callable[[Case], Marking],
    configuration_of: Callable[[Case], Configuration],
    required: Sequence[str] = (),
) -> list[Case]:
    """Return one case for each clause that the cases cite, in their order.

    A chosen case counts for all clauses that it cites. Of the cases of a clause, the
    cheapest is chosen: one under `fork` that shares its processes with other cases. A
    case that cites many clauses breaks only one of them when it fails, so cases that
    cite few clauses are preferred.

    Args:
        cases: objects of any type that represent cases.
        marking_of: returns the test's clauses and other properties of a case.
        configuration_of: returns the configuration of a case.
        required: the clauses that need a case; empty means all of them.
    """

    def cost(place: int) -> tuple[bool, bool, bool, int]:
        marking, where = marking_of(cases[place]), configuration_of(cases[place])
        forks = where.start_method == "fork"
        return (
            bool(where.why_not),
            not forks,
            marking.isolated
            or marking.may_corrupt
            or len(marking.clauses) > MAX_CLAUSES,
            place,
        )

    chosen: set[int] = set()
    represented: set[str] = set()
    for place in sorted(range(len(cases)), key=cost):
        cited = set(marking_of(cases[place]).clauses)
        if new := (cited & set(required or cited)) - represented:
            represented |= new
            chosen.add(place)
    return [cases[place] for place in sorted(chosen)]
