"""Makes the table at the end of a run: how many clauses of each chapter held."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sharedtensor_conformance.report.judge import Standing
from sharedtensor_conformance.report.records import STAND_INS, Case, Run, Summary
from sharedtensor_conformance.report.scope import asked_for

ALWAYS = {Standing.HELD, Standing.NEW, Standing.NOT_CLAIMED, Standing.NOT_RUN}
"""The columns that are shown even if they are empty."""


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Args:
        chapter: the chapter, with the devices that stand in for a real one.
        counts: the number of its clauses in each standing, and of its ``cases``.
        seconds: the duration of these cases.
    """

    chapter: str
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def __add__(self, other: Row) -> Row:
        seconds = self.seconds + other.seconds
        return Row(self.chapter, self.counts + other.counts, seconds)

    def __getitem__(self, column: str) -> str | int | float:
        if column == "chapter":
            return self.chapter
        return self.seconds if column == "seconds" else self.counts[column]

    def text(self, column: str) -> str:
        """Return the text of a cell."""
        return f"{self.seconds:.1f}" if column == "seconds" else str(self[column])


def chapter_rows(
    run: Run,
    summary: Summary,
    cases: Iterable[Case],
    standing: Callable[[str], Standing],
) -> list[Row]:
    """Return the rows of the table, one for each chapter, sorted by name.

    A clause that was not asked for, and that no case judged, is left out. A case is
    counted for the chapter of its first clause, so that the sums over all chapters are
    those of the run.
    """
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    seconds: defaultdict[str, float] = defaultdict(float)
    stand_ins: defaultdict[str, set[str]] = defaultdict(set)
    for id, result in summary.clauses.items():
        stand_ins[_chapter(id)] |= STAND_INS.intersection(result.devices)
        if asked_for(run, id) or result.verdict.judged or result.verdict.broken:
            counts[_chapter(id)][standing(id)] += 1
    for case in cases:
        chapter = _chapter(case.clauses[0])
        counts[chapter]["cases"] += 1
        seconds[chapter] += case.seconds
    return [
        Row(_labelled(name, stand_ins[name]), counts[name], seconds[name])
        for name in sorted(counts)
    ]


def _labelled(chapter: str, devices: set[str]) -> str:
    return f"{chapter} ({', '.join(sorted(devices))})" if devices else chapter


def columns(rows: Iterable[Row]) -> list[str]:
    """Return the columns to show."""
    found = Counter[str]()
    for row in rows:
        found += row.counts
    shown = (one for one in Standing if one in ALWAYS or found[one])
    return ["chapter", *shown, "cases", "seconds"]


def _chapter(clause: str) -> str:
    return clause.partition("-")[0]
