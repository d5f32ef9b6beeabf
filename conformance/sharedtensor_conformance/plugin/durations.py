"""Estimates how long a case takes, from the durations of earlier runs.

The estimates balance shards and batches, and predict the remaining time of a run. No
verdict depends on them. ``ci/durations.py`` made the shipped durations from committed
reports. ``--timings`` reads a report of the user's own machine instead.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from importlib.resources import files
from statistics import fmean

from sharedtensor_conformance.harness.case.axes import Configuration
from sharedtensor_conformance.plugin.enumeration import PlannedCase
from sharedtensor_conformance.report.records import Case, read_report

DEFAULT_IMPLEMENTATION = "reference"
"""The implementation whose durations are used if there are none of the judged one."""

UNKNOWN_SECONDS = 0.1
"""Seconds for a case if no durations are known at all."""

Table = Mapping[str, Mapping[str, float]]
"""Seconds of a case, by test and then by configuration."""


class Durations:
    """Estimates the duration of a case."""

    def __init__(self, table: Table) -> None:
        self._table = table
        every: defaultdict[str, list[float]] = defaultdict(list)
        for row in table.values():
            for configuration, seconds in row.items():
                every[configuration].append(seconds)
        self._means = {name: fmean(all) for name, all in every.items()}
        known = self._means.values()
        self._mean = fmean(known) if known else UNKNOWN_SECONDS

    @property
    def tests(self) -> frozenset[str]:
        """The tests with a known duration."""
        return frozenset(self._table)

    def seconds(self, case: PlannedCase) -> float:
        """Return the estimated duration of a case, in seconds.

        If the test is known only in other configurations, the result is their mean. If
        the test is unknown, it is the mean of all tests in the same configuration.
        """
        if case.configuration.why_not:
            return 0.0
        row, where = self._table.get(case.test, {}), case.configuration.id
        if where in row:
            return row[where]
        if row:
            return fmean(row.values())
        return self._means.get(where, self._mean)


def table_of(cases: Iterable[Case]) -> dict[str, dict[str, float]]:
    """Return the mean duration of each test in each configuration of a report."""
    took: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for case in cases:
        if "strategy" in case.axes:
            axes = case.axes
            where = Configuration(axes["strategy"], axes["start_method"], case.device)
            took[case.test, where.id].append(case.seconds)
    table: dict[str, dict[str, float]] = {}
    for (test, configuration), seconds in sorted(took.items()):
        table.setdefault(test, {})[configuration] = round(fmean(seconds), 3)
    return table


def load_durations(implementation: str, report: str | None) -> Durations:
    """Return the durations of a report; without a report, the shipped ones.

    Raises:
        ReportError: the report cannot be read.
    """
    if report is not None:
        return Durations(table_of(read_report(report).cases))
    shipped = files("sharedtensor_conformance.durations")
    for name in (implementation, DEFAULT_IMPLEMENTATION):
        file = shipped.joinpath(f"{name}.json")
        if file.is_file():
            return Durations(json.loads(file.read_text(encoding="utf-8")))
    return Durations({})
