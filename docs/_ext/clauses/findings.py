"""Shows the deviations of all projects in one table: what is broken where.

Programs of two projects that have one name show the same deviation, so they are one
line. Whoever asks whether another library does it too finds that here; the rest is on
the page of each project.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def findings(known: Mapping[str, Deviating], order: Sequence[str]) -> list[Finding]:
    """Return the deviations of all projects; `order` has the ids of all clauses."""
    found: dict[str, dict[str, Report]] = {}
    for project, deviating in known.items():
        for report in deviating.reports:
            found.setdefault(report.name, {})[project] = report
    every = []
    for reports in found.values():
        broken = {id for report in reports.values() for id in report.clauses}
        every.append(Finding(reports, sorted(broken, key=order.index)))
    return sorted(every, key=lambda one: [order.index(id) for id in one.clauses])
