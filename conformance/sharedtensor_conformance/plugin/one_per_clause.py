"""Chooses one case for each clause, for a quick check of the whole spec.

This is the cheapest way to look for unknown faults, and to check that a mutant breaks
no other clauses.
"""

from __future__ import annotations

from collections.abc import Sequence

from sharedtensor_conformance.plugin.enumeration import PlannedCase

MAX_CLAUSES = 4
"""A case that cites more clauses than this is chosen only if no other case is left."""


def one_per_clause(
    cases: Sequence[PlannedCase], required: Sequence[str] = ()
) -> list[PlannedCase]:
    """Return one case for each clause that the cases cite, in their order.

    A chosen case counts for all clauses that it cites. Of the cases of a clause, the
    cheapest is chosen: one under `fork` that shares its processes with other cases. A
    case that cites many clauses breaks only one of them when it fails, so cases that
    cite few clauses are preferred.

    Args:
        cases: the cases to choose from.
        required: the clauses that need a case; empty means all of them.
    """
    chosen: set[str] = set()
    represented: set[str] = set()
    for case in sorted(cases, key=_cost):
        cited = set(case.marking.clauses)
        if new := (cited & set(required or cited)) - represented:
            represented |= new
            chosen.add(case.id)
    return [case for case in cases if case.id in chosen]


def _cost(case: PlannedCase) -> tuple[bool, bool, bool]:
    marking, where = case.marking, case.configuration
    return (
        bool(where.why_not),
        where.start_method != "fork",
        marking.isolated or marking.may_corrupt or len(marking.clauses) > MAX_CLAUSES,
    )
