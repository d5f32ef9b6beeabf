"""Says which clauses a machine does not permit to judge, and how it would permit it.

A case that a machine does not permit to run says nothing about the implementation, so
its clauses are *not judged here*, which is apart from failures and from missing
devices. All views of a report use these functions, so that they say the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from sharedtensor_conformance.report.records import Case, Run, Summary
from sharedtensor_conformance.report.scope import asked_for
from sharedtensor_conformance.report.verdicts import Need, Verdict

NOT_HERE = "not judged here"
"""The words for a clause that the machine does not permit to judge."""


def needs_of(cases: Iterable[Case]) -> tuple[Need, ...]:
    """Return what alone kept the `cases` of a clause from judging it, or nothing.

    Then each case was not run because of a need, or is about something not claimed.
    """
    found = {case.needs for case in cases if case.verdict is not Verdict.UNSUPPORTED}
    return () if None in found else tuple(need for need in Need if need in found)


def by_need(run: Run, summary: Summary) -> dict[Need, list[str]]:
    """Return the clauses that were asked for and not judged here, by their needs.

    If cases are missing there are none, because these might judge the clauses.
    """
    if not summary.complete:
        return {}
    asked = [(id, r.needs) for id, r in summary.clauses.items() if asked_for(run, id)]
    clauses = {need: [id for id, needs in asked if need in needs] for need in Need}
    return {need: ids for need, ids in clauses.items() if ids}


def not_here(needs: Iterable[Need]) -> str:
    """Return the words for a clause or a case with these needs."""
    return f"{NOT_HERE} (needs {' and '.join(needs)})"


def reason(needs: Iterable[Need]) -> str:
    """Return why clauses were not judged, and what to do."""
    lacking = "; ".join(f"{need}: {need.remedy}" for need in needs)
    return f"the machine does not permit {lacking}"
