"""Shows the deviations of all projects in one table: what is broken where.

Programs of two projects that have one name show the same deviation, so they are one
line. Whoever asks whether another library does it too finds that here; the rest is on
the page of each project.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from clauses.deviations import Deviating, Report


@dataclass(frozen=True)
class Finding:
    """One deviation, as the projects have it, and the clauses that it breaks."""

    reports: Mapping[str, Report]
    clauses: Sequence[str]

    @property
    def title(self) -> str:
        """What happens, in a line; the first project names it."""
        return next(iter(self.reports.values())).title


def findings(known: Mapping[str, Deviating], chapters: Sequence[str]) -> list[Finding]:
    """Return the deviations of all projects, in the order of the clauses."""
    found: dict[str, dict[str, Report]] = {}
    for project, deviating in known.items():
        for report in deviating.reports:
            found.setdefault(report.name, {})[project] = report
    every = [
        Finding(reports, in_order(clauses_of(reports.values()), chapters))
        for reports in found.values()
    ]
    return sorted(every, key=lambda one: [place(id, chapters) for id in one.clauses])


def clauses_of(reports: Iterable[Report]) -> set[str]:
    """Return the clauses that some report is about."""
    return {id for report in reports for id in report.clauses}


def in_order(clauses: Iterable[str], chapters: Sequence[str]) -> list[str]:
    """Return clauses as the specification has them."""
    return sorted(clauses, key=lambda id: place(id, chapters))


def place(clause: str, chapters: Sequence[str]) -> tuple[int, str, int]:
    """Return the place of a clause; chapters that are not configured come last."""
    chapter, _, number = clause.partition("-")
    known = chapters.index(chapter) if chapter in chapters else len(chapters)
    return known, chapter, int(number)
