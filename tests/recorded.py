"""Reads the committed reports without validating each line, which takes seconds.

`test_each_cause_of_a_committed_report_is_one_of_its_expectations` validates them.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from sharedtensor_conformance.report.records import Case, Report, Run, Summary

REPORTS = Path(__file__).parents[1] / "docs/reports"


@cache
def recorded(name: str) -> Report:
    """Return a committed report of a run that ended."""
    file = REPORTS / f"{name}.jsonl"
    first, *cases, last = map(json.loads, file.read_text().splitlines())
    found = tuple(map(Case.from_data, cases))
    return Report(
        Run.from_data(first), found, Summary.from_data(last), source=str(file)
    )
