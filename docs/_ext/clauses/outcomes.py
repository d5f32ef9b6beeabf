"""What the site counts: a clause holds, is broken, is not claimed, or was not run.

A verdict has more words than a picture can show. All pages that count clauses do it by
these, so their figures agree. What the machine of a run did not permit is counted apart
and shown only where there is any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from enum import StrEnum

from sharedtensor_conformance.clauses import Clause
from sharedtensor_conformance.report.needs import NOT_HERE
from sharedtensor_conformance.report.verdicts import Need, Verdict

from clauses.reports import Column


class Outcome(StrEnum):
    """What became of a clause, in the order in which it is shown."""

    HELD = "held"
    BROKEN = "broken"
    NOT_CLAIMED = "not claimed"
    NOT_RUN = "not run"
    NOT_HERE = NOT_HERE

    @property
    def slug(self) -> str:
        """The outcome as addresses and style sheets name it."""
        return self.replace(" ", "-")

    @property
    def symbol(self) -> str:
        """The sign that stands for it where there is little room."""
        return dict(zip(Outcome, "✓✗·○○", strict=True))[self]


def outcome_of(verdict: Verdict, needs: Collection[Need] = ()) -> Outcome:
    """Return what `verdict` counts as; a known deviation is broken all the same.

    Args:
        verdict: the verdict on a clause.
        needs: why no case judged the clause, if the machine did not permit it.
    """
    if verdict.broken or verdict is Verdict.FOLLOWS:
        return Outcome.BROKEN
    if verdict is Verdict.PASS:
        return Outcome.HELD
    if verdict is Verdict.UNSUPPORTED:
        return Outcome.NOT_CLAIMED
    return Outcome.NOT_HERE if needs else Outcome.NOT_RUN


def outcome_in(column: Column, clause: str) -> Outcome:
    """Return what `column` says of `clause`; nothing said is not run.

    A clause with a known deviation that did not show in the run is broken.
    """
    judgement = column.judgements.get(clause)
    if judgement is None:
        return Outcome.NOT_RUN
    if judgement.not_shown:
        return Outcome.BROKEN
    return outcome_of(judgement.verdict, judgement.needs)


def counted(column: Column, clauses: Iterable[Clause]) -> dict[Outcome, int]:
    """Return how many of `clauses` have each outcome, those that none has left out."""
    counts = Counter(outcome_in(column, clause.id) for clause in clauses)
    return {outcome: counts[outcome] for outcome in Outcome if counts[outcome]}


def to_name(columns: Iterable[Column], clauses: Iterable[Clause]) -> list[Outcome]:
    """Return the outcomes that a page has to name, where it shows these columns."""
    clauses = list(clauses)
    any_here = any(Outcome.NOT_HERE in counted(one, clauses) for one in columns)
    return [one for one in Outcome if any_here or one is not Outcome.NOT_HERE]
