"""What the site counts: a clause holds, is broken, is not claimed, or was not run.

A verdict has more words than a picture can show. All pages that count clauses do it by
these four, so their figures agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from sharedtensor_conformance.clauses import Clause
from sharedtensor_conformance.report.verdicts import Verdict

from clauses.reports import Column


class Outcome(StrEnum):
    """What became of a clause, in the order in which it is shown."""

    HELD = "held"
    BROKEN = "broken"
    NOT_CLAIMED = "not claimed"
    NOT_RUN = "not run"

    @property
    def slug(self) -> str:
        """The outcome as addresses and style sheets name it."""
        return self.replace(" ", "-")

    @property
    def symbol(self) -> str:
        """The sign that stands for it where there is little room."""
        return {"held": "✓", "broken": "✗", "not claimed": "·", "not run": "○"}[self]


def outcome_of(verdict: Verdict) -> Outcome:
    """Return what `verdict` counts as; a known deviation is broken all the same."""
    if verdict.broken or verdict is Verdict.FOLLOWS:
        return Outcome.BROKEN
    if verdict is Verdict.PASS:
        return Outcome.HELD
    claimed = verdict is not Verdict.UNSUPPORTED
    return Outcome.NOT_RUN if claimed else Outcome.NOT_CLAIMED


def outcome_in(column: Column, clause: str) -> Outcome:
    """Return what `column` says of `clause`; nothing said is not run.

    A clause with a known deviation that did not show in the run is broken.
    """
    judgement = column.judgements.get(clause)
    if judgement is None:
        return Outcome.NOT_RUN
    return Outcome.BROKEN if judgement.not_shown else outcome_of(judgement.verdict)


def counted(column: Column, clauses: Iterable[Clause]) -> dict[Outcome, int]:
    """Return how many of `clauses` have each outcome, those that none has left out."""
    counts = Counter(outcome_in(column, clause.id) for clause in clauses)
    return {outcome: counts[outcome] for outcome in Outcome if counts[outcome]}


def in_words(counts: dict[Outcome, int]) -> str:
    """Return counts as words: ``11 held, 1 broken``."""
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
