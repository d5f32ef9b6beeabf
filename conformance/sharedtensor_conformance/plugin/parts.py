"""Combines the results of a case that runs in several batches into one result.

A case that runs last is run at the end of each batch of its configuration. pytest has a
result for each batch, but the report has one line for each case.
"""

from __future__ import annotations

import functools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from sharedtensor_conformance.plugin.enumeration import id_in_report
from sharedtensor_conformance.report.merge import as_one
from sharedtensor_conformance.report.records import Case

Result = tuple[pytest.TestReport, Case]
"""pytest's report of a case in one batch, and the case."""


def case_in(report: pytest.TestReport | pytest.CollectReport) -> Case | None:
    """Return the case in pytest's report, or None if the report is not of a case."""
    found = dict(getattr(report, "user_properties", ())).get("case")
    return _read(str(found)) if found else None


@functools.lru_cache(maxsize=1)  # pytest asks for each report several times
def _read(text: str) -> Case:
    return Case.from_data(json.loads(text))


@dataclass
class Parts:
    """The results of cases that still have results to come.

    Args:
        awaited: how many results each case has in total, by its id.
    """

    awaited: Counter[str] = field(default_factory=Counter)
    _results: defaultdict[str, list[Result]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def expect(self, nodeids: Iterable[str]) -> None:
        """Note which results to expect."""
        self.awaited = Counter(map(id_in_report, nodeids))

    def add(self, report: pytest.TestReport, case: Case) -> Case | None:
        """Return the combined case if this is its last result, else None.

        pytest's report is then changed to the worst of the results.
        """
        results = self._results[case.id]
        results.append((report, case))
        if len(results) < self.awaited[case.id]:
            return None
        del self._results[case.id]
        return _combine(results)

    def are_missing(self, id: str) -> bool:
        """Return whether a case has some results but not all."""
        return id in self._results

    def incomplete_broken(self) -> list[Case]:
        """Return the broken cases with missing results.

        A case with one broken result is broken, whatever the missing results are.
        """
        made = [_combine(results) for results in self._results.values()]
        return [case for case in made if case.verdict.broken]


def _combine(results: list[Result]) -> Case:
    """Return the combined case, and change the last report to the worst result."""
    last, case = results[-1]
    if len(results) == 1:
        return case
    case = as_one([part for _, part in results])
    worst = next(
        report
        for report, part in results
        if (part.verdict, part.expected) == (case.verdict, case.expected)
    )
    last.outcome, last.longrepr = worst.outcome, worst.longrepr
    last.user_properties[:] = [("case", json.dumps(case.as_data()))]
    return case
