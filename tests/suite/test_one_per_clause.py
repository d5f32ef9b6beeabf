"""`--one-per-clause` takes one case of each clause, and says that it is a part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from planned_cases import planned
from sharedtensor_conformance.adapters.loader import load_implementation
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.harness.case.axes import Configuration
from sharedtensor_conformance.plugin.enumeration import PlannedCase, all_cases
from sharedtensor_conformance.plugin.matrix import Selection
from sharedtensor_conformance.plugin.one_per_clause import one_per_clause


def made(name: str, *clauses: str, method: str = "fork", **details: Any) -> PlannedCase:
    where = Configuration("file_descriptor", method)
    return planned(name, where, clauses, **details)


def chosen(*cases: PlannedCase) -> list[str]:
    return [case.test[-1] for case in one_per_clause(cases)]


def test_one_case_stands_for_each_clause():
    cases = made("a", "SHARE-1"), made("b", "SHARE-1"), made("c", "SHARE-2")
    assert chosen(*cases) == ["a", "c"]


def test_one_case_stands_for_all_its_clauses():
    assert chosen(made("a", "SHARE-1", "SHARE-2"), made("b", "SHARE-2")) == ["a"]


@pytest.mark.parametrize(
    "dear",
    [
        {"method": "spawn"},
        {"isolated": True},
        {"may_corrupt": True},
        {"method": "forkserver", "isolated": True},
    ],
)
def test_cheapest_case_is_taken(dear):
    assert chosen(made("a", "SHARE-1", **dear), made("b", "SHARE-1")) == ["b"]


def test_dear_case_is_taken_where_there_is_no_other():
    cases = made("a", "SHARE-1", method="spawn"), made("b", "SHARE-2")
    assert chosen(*cases) == ["a", "b"]


def test_case_that_cannot_run_stands_for_nobody_who_has_another():
    unsupported = Configuration("", "", why_not="not claimed", unsupported=True)
    cases = planned("a", unsupported), made("b", "SHARE-1")
    assert chosen(*cases) == ["b"]
    assert chosen(cases[0]) == ["a"]


def test_clause_that_was_not_asked_for_needs_no_case():
    cases = made("a", "SHARE-1"), made("b", "SHARE-1", "SHARE-2", method="spawn")
    assert one_per_clause(cases, ["SHARE-1"]) == [cases[0]]


def test_no_clause_has_two_cases_of_its_own():
    clauses = [id for id in load_clauses() if id.startswith("SHARE-")]
    selection = Selection(clauses=tuple(clauses))
    every = list(all_cases(selection, load_implementation("reference")))
    some = one_per_clause(every, clauses)
    assert 0 < len(some) <= len(clauses) < len(every)


def test_run_judges_each_clause_and_is_called_partial(suite):
    chosen = ("--clause=SHARE-1", "--clause=SHARE-2", "--clause=SHARE-3")
    done = suite("--impl=numpy-copy", *chosen, "--one-per-clause")
    cases = done.cases
    judged = {id for case in cases for id in case.clauses}
    assert {"SHARE-1", "SHARE-2", "SHARE-3"} <= judged
    assert len(cases) <= 3
    assert done.status == 1
    assert "partial selection" in done.text


@pytest.mark.parametrize("forks", [True, False])
def test_its_cases_run_under_fork_where_they_can(forks):
    declared = load_implementation("reference")
    if not forks:
        declared = replace(declared, start_methods=("spawn", "forkserver"))
    selection = Selection(one_per_clause=True)
    methods = {
        (case.marking.starts, case.configuration.start_method)
        for case in all_cases(selection, declared)
        if case.shares_processes and not case.marking.vary
        if case.configuration.device == "cpu"
        if not (case.marking.start_methods or case.marking.prefers)
    }
    shared, started = ("fork", "fork") if forks else ("spawn", "forkserver")
    assert methods == {(False, shared), (True, started)}
