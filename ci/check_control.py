"""Checks the report of a control: values arrive, nothing is shared.

A control has to break every clause of its claimed profiles that observes sharing, and
none that observes only values. Of a selection by profile the clauses of these profiles
count: a case may cite others, which it cannot judge alone. Exit status: 0 when it does
so, 1 and a line for each clause otherwise, 2 where there is no whole report.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.report.records import (
    Report,
    ReportError,
    Summary,
    read_report,
)


def mistakes(report: Report, summary: Summary) -> Iterator[str]:
    """Yield what a control did that a control must not do."""
    clauses = load_clauses()
    chosen = _profiles(report)
    for id, result in summary.clauses.items():
        if chosen and clauses[id].profile not in chosen:
            continue
        observes = clauses[id].observes
        if observes == "sharing" and result.verdict == "pass":
            yield f"{id} observes sharing, but a control that only copies holds it"
        if observes == "values" and result.verdict.broken:
            yield f"{id} observes values, but a control that copies breaks it"
    if not any(clauses[id].observes == "sharing" for id in summary.clauses):
        yield "no clause that observes sharing was judged"


def _profiles(report: Report) -> set[str]:
    """Return the profiles that were selected; empty where all were."""
    given = (option.partition("=") for option in report.run.selection.options)
    return {value for name, _, value in given if name == "--profile"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the report that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("report", help="that of a run on a control, as --report wrote")
    try:
        report = read_report(parser.parse_args(arguments).report)
        if report.summary is None:
            raise ReportError(f"{report.source} was cut short: run the suite again")
    except ReportError as error:
        print(error, file=sys.stderr)
        return 2
    found = list(mistakes(report, report.summary))
    for mistake in found:
        print(mistake)
    name = report.run.implementation.name
    if not found:
        print(f"{name}: breaks what observes sharing, and nothing that observes values")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
