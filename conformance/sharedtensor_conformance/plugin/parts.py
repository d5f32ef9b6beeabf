"""One result of a case that is run at the end of each batch of its configuration.

pytest has a result for each of its items; the report has one for each case.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from sharedtensor_conformance.plugin.enumeration import id_in_report
from sharedtensor_conformance.report.merge import as_one
from sharedtensor_conformance.report.records import Case

Result = tuple[pytest.TestReport, Case]
"""What pytest reports of a case in one batch, and the case that it is about."""


def case_in(report: pytest.TestReport | pytest.CollectReport) -> Case | None:
    """Return the case that pytest's report is about, None where it is about none."""
    found = dict(getattr(report, "user_properties", ())).get("case")
    return Case.from_data(json.loads(str(found))) if found else None


@dataclass
class Parts:
    """The results of cases of which more are to come.

    Args:
        awaited: how many results a case has, by its id.
    """

    awaited: Counter[str] = field(default_factory=Counter)
    _results: defaultdict[str, list[Result]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def expect(self, nodeids: Iterable[str]) -> None:
        """Learn which results there will be."""
        self.awaited = Counter(map(id_in_report, nodeids))

    def add(self, report: pytest.TestReport, case: Case) -> Case | None:
        """Return the case where this is the last of its results.

        The report then says what the worst of them says.
        """
        results = self._results[case.id]
        results.append((report, case))
        if len(results) < self.awaited[case.id]:
            return None
        del self._results[case.id]
        return _made_one(results)

    def are_missing(self, id: str) -> bool:
        """Return whether a case has results, and there are more to come."""
        return id in self._results

    def left(self) -> list[Case]:
        """Return the broken cases of which results are missing.

        Whatever the others would have been, these are broken.
        """
        made = [_made_one(results) for results in self._results.values()]
        return [case for case in made if case.verdict.broken]


def _made_one(results: list[Result]) -> Case:
    """Return the case, and let the last report say what the worst one says."""
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
