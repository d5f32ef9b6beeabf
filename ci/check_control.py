"""Checks the report of a control: an implementation that copies every tensor.

A control has to break every clause of its claimed profiles that observes sharing, and
no clause that observes only values. After a selection by profile, only the clauses of
these profiles count, because a case may cite others that it cannot judge alone.

Exit status: 0 if the report is as expected, 1 and a line for each other clause if not,
2 if the report is missing or incomplete.
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
    """Yield a sentence for each clause with an unexpected result."""
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
    """Return the selected profiles; empty if all were selected."""
    given = (option.partition("=") for option in report.run.selection.options)
    return {value for name, _, value in given if name == "--profile"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the report that is given on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0],
        epilog="Exit status: 0 if the report is as expected, 1 if not, 2 if it is "
        "missing or incomplete.",
    )
    parser.add_argument("report", help="the report of a run on a control (JSON Lines)")
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
