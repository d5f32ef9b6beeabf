"""How long a case takes, as far as earlier runs tell.

Shards are balanced by it, and the progress of a run says how much time is left. Nothing
is judged by it. What ships was taken from committed reports by ``ci/durations.py``; a
report of one's own tells more (``--timings``).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from importlib.resources import files
from statistics import fmean

from sharedtensor_conformance.harness.matrix import Configuration
from sharedtensor_conformance.plugin.enumeration import PlannedCase
from sharedtensor_conformance.report.records import Case, read_report

DEFAULT = "reference"
"""Whose durations stand for those of an implementation without any."""

UNKNOWN = 0.1
"""Seconds for a case where nothing at all is known."""

Table = Mapping[str, Mapping[str, float]]
"""Seconds of a case, by its test and then by its configuration."""


class Durations:
    """Estimates what a case takes from what cases took."""

    def __init__(self, table: Table) -> None:
        self._table = table
        every: defaultdict[str, list[float]] = defaultdict(list)
        for row in table.values():
            for configuration, seconds in row.items():
                every[configuration].append(seconds)
        self._of_configuration = {name: fmean(all) for name, all in every.items()}
        known = self._of_configuration.values()
        self._of_any = fmean(known) if known else UNKNOWN

    @property
    def tests(self) -> frozenset[str]:
        """The tests of which something is known."""
        return frozenset(self._table)

    def seconds(self, case: PlannedCase) -> float:
        """Return what a case takes.

        A test that is known elsewhere takes as long as it does there; one that is not
        known takes what tests take in its configuration.
        """
        if case.configuration.why_not:
            return 0.0
        row, where = self._table.get(case.test, {}), case.configuration.id
        if where in row:
            return row[where]
        if row:
            return fmean(row.values())
        return self._of_configuration.get(where, self._of_any)


def table_of(cases: Iterable[Case]) -> dict[str, dict[str, float]]:
    """Return what the cases of a report took, on average."""
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
    """Return the durations of a report, else those that ship.

    Raises:
        ReportError: the report cannot be read.
    """
    if report is not None:
        return Durations(table_of(read_report(report).cases))
    shipped = files("sharedtensor_conformance.durations")
    for name in (implementation, DEFAULT):
        file = shipped.joinpath(f"{name}.json")
        if file.is_file():
            return Durations(json.loads(file.read_text(encoding="utf-8")))
    return Durations({})
