"""A report without its cases: what was run, and what that says of each clause.

A whole report is large. Where many runs are kept to be compared, such as those of the
releases of a library, the first and the last line of each are enough.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharedtensor_conformance.report.records import (
    Report,
    ReportError,
    Run,
    Summary,
    line_from,
)


@dataclass(frozen=True)
class SummaryFile:
    """The first and the last line of a report whose run reached its end."""

    run: Run
    summary: Summary


def summary_text(report: Report) -> str:
    """Return the summary of a report as JSON, to be written into a file.

    Raises:
        ReportError: its run was cut short, so it says nothing of some clauses.
    """
    if report.summary is None or not report.complete:
        raise ReportError(
            f"{report.source} is of a run that was cut short, which has no summary: "
            f"run the suite again"
        )
    return "\n".join(_lines(report.run.as_data(), report.summary.as_data()))


def _lines(run: dict[str, Any], summary: dict[str, Any]) -> Iterator[str]:
    """Yield lines of JSON, one for each clause: a change is then seen in a diff."""
    clauses = summary.pop("clauses")
    yield f'{{"run": {json.dumps(run)},'
    yield f'"summary": {json.dumps(summary)[:-1]}, "clauses": {{'
    pairs = [f"{json.dumps(id)}: {json.dumps(told)}" for id, told in clauses.items()]
    yield ",\n".join(pairs)
    yield "}}}\n"


def read_summary(path: str | Path) -> SummaryFile:
    """Return what the file `path` holds.

    Raises:
        ReportError: the file cannot be read, or what it holds is no summary.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ReportError(f"the summary {path} cannot be read: {reason}") from error
    except ValueError as error:
        raise ReportError(f"{path} is no summary: it is not JSON: {error}") from error
    if not isinstance(data, dict) or set(data) != {"run", "summary"}:
        raise ReportError(f"{path} is no summary: it has no run and no summary alone")
    try:
        run, summary = line_from(data["run"]), line_from(data["summary"])
    except ReportError as error:
        raise ReportError(f"{path} {error}") from error
    if not (isinstance(run, Run) and isinstance(summary, Summary)):
        raise ReportError(f"{path} is no summary: its two lines are of other types")
    return SummaryFile(run, summary)
