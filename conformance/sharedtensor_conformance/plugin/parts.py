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
    _reports: defaultdict[str, list[pytest.TestReport]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def expect(self, nodeids: Iterable[str]) -> None:
        """Learn which results there will be."""
        self.awaited = Counter(map(id_in_report, nodeids))

    def add(self, report: pytest.TestReport, case: Case) -> Case | None:
        """Return the case where this is the last of its results.

        The report then says what the worst of them says.
        """
        reports = self._reports[case.id]
        reports.append(report)
        if len(reports) < self.awaited[case.id]:
            return None
        del self._reports[case.id]
        return _made_one(reports, report)

    def are_missing(self, id: str) -> bool:
        """Return whether a case has results, and there are more to come."""
        return id in self._reports

    def left(self) -> list[Case]:
        """Return the broken cases of which results are missing.

        Whatever the others would have been, these are broken.
        """
        made = [_made_one(reports, reports[-1]) for reports in self._reports.values()]
        return [case for case in made if case.verdict.broken]


def _made_one(reports: list[pytest.TestReport], last: pytest.TestReport) -> Case:
    cases = [case for report in reports if (case := case_in(report))]
    if len(cases) == 1:
        return cases[0]
    case = as_one(cases)
    same = (
        report
        for report, one in zip(reports, cases, strict=True)
        if one.verdict is case.verdict and one.expected == case.expected
    )
    worst = next(same)
    last.outcome, last.longrepr = worst.outcome, worst.longrepr
    last.user_properties[:] = [("case", json.dumps(case.as_data()))]
    return case
