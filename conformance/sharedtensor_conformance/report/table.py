"""Makes the table at the end of a run: how many clauses of each chapter held."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from sharedtensor_conformance.report.judge import Standing
from sharedtensor_conformance.report.records import STAND_INS, Case, Run, Summary
from sharedtensor_conformance.report.scope import asked_for

ONLY_WHERE_ANY = {
    *("blocked", "advisory", "breaks_docs", "differs", "known", "not_here"),
}
"""The columns that are not shown if they are empty."""


@dataclass(frozen=True)
class Row:
    """One line of the table: the number of clauses of a chapter in each standing.

    `cases` and `seconds` count the cases whose first clause is of the chapter, so that
    their sums over all chapters are those of the run.
    """

    chapter: str
    held: int = 0
    new: int = 0
    blocked: int = 0
    advisory: int = 0
    breaks_docs: int = 0
    differs: int = 0
    known: int = 0
    not_claimed: int = 0
    not_run: int = 0
    not_here: int = 0
    cases: int = 0
    seconds: float = 0.0

    def __add__(self, other: Row) -> Row:
        mine, others = vars(self), vars(other)
        sums = {name: mine[name] + others[name] for name in mine if name != "chapter"}
        return Row(self.chapter, **sums)

    def text(self, column: str) -> str:
        """Return the text of a cell."""
        return f"{self.seconds:.1f}" if column == "seconds" else str(vars(self)[column])


def chapter_rows(
    run: Run,
    summary: Summary,
    cases: Iterable[Case],
    standing: Callable[[str], Standing],
) -> list[Row]:
    """Return the rows of the table, one for each chapter, sorted by name.

    A clause that was not asked for, and that no case judged, is left out.
    """
    rows: dict[str, Row] = {}
    for id, result in summary.clauses.items():
        if asked_for(run, id) or result.verdict.judged or result.verdict.broken:
            _add(rows, _chapter(id), _of_clause(_chapter(id), standing(id)))
    for case in cases:
        chapter = _chapter(case.clauses[0])
        _add(rows, chapter, Row(chapter, cases=1, seconds=case.seconds))
    return [
        _labelled(row, _stand_ins(summary, name)) for name, row in sorted(rows.items())
    ]


def _labelled(row: Row, devices: Iterable[str]) -> Row:
    where = ", ".join(sorted(devices))
    return replace(row, chapter=f"{row.chapter} ({where})") if where else row


def _stand_ins(summary: Summary, chapter: str) -> set[str]:
    of_chapter = (r for id, r in summary.clauses.items() if _chapter(id) == chapter)
    return {device for r in of_chapter for device in STAND_INS.intersection(r.devices)}


def columns(rows: Iterable[Row]) -> list[str]:
    """Return the columns to show."""
    rows = list(rows)
    names = [field.name for field in fields(Row)]
    return [
        name
        for name in names
        if name not in ONLY_WHERE_ANY or any(vars(row)[name] for row in rows)
    ]


def _chapter(clause: str) -> str:
    return clause.partition("-")[0]


def _add(rows: dict[str, Row], chapter: str, more: Row) -> None:
    rows[chapter] = rows.get(chapter, Row(chapter)) + more


def _of_clause(chapter: str, standing: Standing) -> Row:
    column: dict[str, Any] = {standing.replace(" ", "_"): 1}
    return Row(chapter, **column)
