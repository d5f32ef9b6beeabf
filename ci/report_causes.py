"""Writes the present wording of causes into the committed reports.

    python ci/report_causes.py

A report repeats the causes of the deviations that were expected. A cause explains a
verdict and is no part of it, so it can be worded better after the run. This script
replaces each cause by that of the entry that expects the case today, and changes
nothing else. It fails if no entry expects a case: then the run is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from sharedtensor_conformance.report.expectations import load_expectations
from sharedtensor_conformance.report.records import Line, read_report, text_of

ROOT = Path(__file__).parents[1]
REPORTS = ROOT / "docs" / "reports"
EXPECTATIONS = ROOT / "conformance" / "sharedtensor_conformance" / "expectations"


class NotExpected(Exception):
    """A case has a cause, and no entry expects it."""


def reworded(file: Path, expectations: Path) -> str:
    """Return the text of a report with the present causes.

    Raises:
        NotExpected: no entry expects a case that was expected in the run.
    """
    report = read_report(file)
    name = report.run.selection.expectations
    known = load_expectations(expectations / name if name else None)
    version = report.run.implementation.version
    lines: list[Line] = [report.run]
    for case in report.cases:
        entry = known.covers(case, version) if case.cause else None
        if case.cause and not entry:
            raise NotExpected(f"{file.name}: {name} has no entry for {case.id}")
        lines.append(replace(case, cause=entry.cause if entry else ""))
    return "".join(text_of(line) for line in (*lines, report.summary) if line)


def main() -> int:
    """Rewrite each committed report whose causes are worded otherwise today."""
    try:
        for file, text in _changed():
            file.write_text(text, encoding="utf-8")
            print(f"{file.relative_to(ROOT)}: causes reworded")
    except NotExpected as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _changed() -> Iterator[tuple[Path, str]]:
    for file in sorted(REPORTS.rglob("*.jsonl")):
        text = reworded(file, EXPECTATIONS)
        if text != file.read_text(encoding="utf-8"):
            yield file, text


if __name__ == "__main__":
    sys.exit(main())
