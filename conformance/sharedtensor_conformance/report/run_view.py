"""A run as people see it: the terminal, the page, Markdown and the badge show the same.

They are renderings of one `RunView`. The sentences that they have in common are in the
module `sentences`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from sharedtensor_conformance.clauses import Clause
from sharedtensor_conformance.report.groups import Group, groups_of
from sharedtensor_conformance.report.judge import (
    Shortfalls,
    Standing,
    shortfalls,
    standing,
)
from sharedtensor_conformance.report.known import Breach, Known
from sharedtensor_conformance.report.needs import by_need
from sharedtensor_conformance.report.records import Case, Run, Summary
from sharedtensor_conformance.report.repeat import repeat_command
from sharedtensor_conformance.report.table import Row, chapter_rows, columns
from sharedtensor_conformance.report.verdicts import Need

UNKNOWN = "(not in the installed spec)"

OF_BREACH = {
    Breach.DOCUMENTATION: Standing.BREAKS_DOCS,
    Breach.SPECIFICATION: Standing.DIFFERS,
    Breach.UNEXPLAINED: Standing.KNOWN,
}
"""The standing of a clause with a known deviation, by what this breaks."""


@dataclass(frozen=True)
class RunView:
    """A run with its summary, and what follows from them.

    Args:
        run: the first line of the report.
        cases: its cases.
        summary: its summary.
        clauses: the clauses of the installed spec.
    """

    run: Run
    cases: Sequence[Case]
    summary: Summary
    clauses: Mapping[str, Clause]

    @property
    def name(self) -> str:
        """The implementation with its version."""
        return str(self.run.implementation)

    @cached_property
    def groups(self) -> list[Group]:
        """The broken cases by cause, the most basic clause first."""
        return groups_of(self.cases, self.summary, self.clauses)

    @cached_property
    def rows(self) -> list[Row]:
        """The rows of the table by chapter, with the sum as the last one, if any."""
        rows = chapter_rows(self.run, self.summary, self.cases, self.standing)
        return [*rows, sum(rows, Row("all"))] if rows else []

    @property
    def columns(self) -> list[str]:
        """The columns of the table."""
        return columns(self.rows)

    @cached_property
    def short(self) -> Shortfalls:
        """Why the exit status is not 0."""
        return shortfalls(self.run, self.summary)

    @cached_property
    def counts(self) -> Counter[Standing]:
        """The number of clauses of each standing."""
        return Counter(map(self.standing, self.summary.clauses))

    @property
    def known_count(self) -> int:
        """The number of clauses with a known deviation."""
        return sum(self.counts[one] for one in OF_BREACH.values())

    @property
    def broken_count(self) -> int:
        """The number of broken clauses, known or new."""
        new = self.counts[Standing.NEW] + self.counts[Standing.ADVISORY]
        return new + self.known_count

    @cached_property
    def known(self) -> Known:
        """What is known of deviations of the implementation."""
        return Known(self.run)

    @cached_property
    def breaches(self) -> dict[str, Breach]:
        """What each broken clause breaks, also one that held by chance."""
        return self.known.breaches(self.cases, self.summary)

    @cached_property
    def not_shown(self) -> list[str]:
        """The clauses that held though a deviation from them is known."""
        found = self.known.not_shown(self.cases, self.summary)
        return list(dict.fromkeys(id for id, _ in found))

    @cached_property
    def by_need(self) -> dict[Need, list[str]]:
        """The clauses that the machine does not permit to judge, by what is needed."""
        return by_need(self.run, self.summary)

    def standing(self, id: str) -> Standing:
        """Return the standing of a clause, with what a known deviation breaks."""
        found = standing(self.run, self.summary.clauses[id])
        if found is Standing.KNOWN or id in self.not_shown:
            return OF_BREACH[self.breaches.get(id, Breach.UNEXPLAINED)]
        return found

    def title(self, id: str) -> str:
        """Return the title of a clause."""
        return self.clauses[id].title if id in self.clauses else UNKNOWN

    def repeat(self, group: Group) -> str:
        """Return the command that repeats the case that a group shows."""
        return repeat_command(self.run, group.first, group.shown)
