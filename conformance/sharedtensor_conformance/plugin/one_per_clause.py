"""Chooses one case for each clause: a look at the whole spec in seconds.

Where a fault is looked for that is not known to be there, and for a mutant, which has
to leave the other clauses alone, one case of each clause says most for its price.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from sharedtensor_conformance.harness.marking import Marking
from sharedtensor_conformance.harness.matrix import Configuration

Case = TypeVar("Case")

FEW = 4
"""A case that cites more clauses than this stands for none that another stands for."""


def one_per_clause(
    cases: Sequence[Case],
    marking_of: Callable[[Case], Marking],
    configuration_of: Callable[[Case], Configuration],
    asked_for: Sequence[str] = (),
) -> list[Case]:
    """Return one case for each clause that the cases cite, in their order.

    A case that stands for one of its clauses stands for all of them. Of a clause's
    cases the cheapest is taken: under `fork`, with the processes of the others. One
    that cites many breaks the nearest alone, so it comes behind those that cite few.

    Args:
        cases: anything that stands for a case.
        marking_of: what ties it to its clauses.
        configuration_of: where it runs.
        asked_for: the clauses to represent; empty: all of them.
    """

    def price(place: int) -> tuple[bool, bool, bool, int]:
        marking, where = marking_of(cases[place]), configuration_of(cases[place])
        forks = where.start_method == "fork"
        return (
            bool(where.why_not),
            not forks,
            marking.isolated or marking.may_corrupt or len(marking.clauses) > FEW,
            place,
        )

    chosen: set[int] = set()
    represented: set[str] = set()
    for place in sorted(range(len(cases)), key=price):
        cited = set(marking_of(cases[place]).clauses)
        if new := (cited & set(asked_for or cited)) - represented:
            represented |= new
            chosen.add(place)
    return [cases[place] for place in sorted(chosen)]
