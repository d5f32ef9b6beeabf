"""Reads and writes summaries: reports without their cases.

A complete report is large. To compare many runs, for example of all releases of a
library, the first and the last line of each report are enough.
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
    """The first and the last line of the report of a complete run."""

    run: Run
    summary: Summary


def summary_text(report: Report) -> str:
    """Return the summary of a report as JSON, for a file.

    Raises:
        ReportError: the run was cut short, so that results of clauses are missing.
    """
    if report.summary is None or not report.complete:
        raise ReportError(
            f"the run of {report.source} was cut short and has no summary: run the "
            f"suite again"
        )
    return "\n".join(_lines(report.run.as_data(), report.summary.as_data()))


def _lines(run: dict[str, Any], summary: dict[str, Any]) -> Iterator[str]:
    """Yield lines of JSON, one for each clause, so that diffs show changed clauses."""
    clauses = summary.pop("clauses")
    yield f'{{"run": {json.dumps(run)},'
    yield f'"summary": {json.dumps(summary)[:-1]}, "clauses": {{'
    pairs = [f"{json.dumps(id)}: {json.dumps(told)}" for id, told in clauses.items()]
    yield ",\n".join(pairs)
    yield "}}}\n"


def read_summary(path: str | Path) -> SummaryFile:
    """Return the summary in the file `path`.

    Raises:
        ReportError: the file cannot be read, or is not a summary.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ReportError(f"the summary {path} cannot be read: {reason}") from error
    except ValueError as error:
        raise ReportError(f"{path} is not a summary: no JSON: {error}") from error
    if not isinstance(data, dict) or set(data) != {"run", "summary"}:
        raise ReportError(f"{path} is not a summary: its keys are not run and summary")
    try:
        run, summary = line_from(data["run"]), line_from(data["summary"])
    except ReportError as error:
        raise ReportError(f"{path} {error}") from error
    if not (isinstance(run, Run) and isinstance(summary, Summary)):
        raise ReportError(f"{path} is not a summary: its two lines have wrong types")
    return SummaryFile(run, summary)
