"""A case that is run at the end of each batch has one result."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from sharedtensor_conformance.plugin.parts import Parts, case_in
from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.verdicts import Verdict

PASS = Case("test_a.py::test_b[c]", "test_a.py::test_b", ("LIFE-7",), Verdict.PASS)
FAIL = replace(PASS, verdict=Verdict.FAIL, evidence="it is left")
NODES = [
    "x/test_a.py::test_b[c]",
    "x/test_a.py::test_b[c@1]",
    "x/test_a.py::test_b[c@2]",
]


def result(case, number):
    outcome = "passed" if case.verdict is Verdict.PASS else "failed"
    return pytest.TestReport(
        nodeid=NODES[number],
        location=("test_a.py", 1, "test_b"),
        keywords={},
        outcome=outcome,
        longrepr=case.evidence or None,
        when="call",
        user_properties=[("case", json.dumps(case.as_data()))],
    )


@pytest.fixture
def parts():
    parts = Parts()
    parts.expect(NODES)
    return parts


def test_case_that_held_in_all_batches_has_held(parts):
    results = [result(PASS, n) for n in range(3)]
    made = [parts.add(one, case_in(one)) for one in results]
    assert made == [None, None, PASS]
    assert (results[2].outcome, results[2].longrepr) == ("passed", None)
    assert case_in(results[2]) == PASS


@pytest.mark.parametrize("worst", [0, 1, 2])
def test_last_result_is_as_bad_as_the_worst(parts, worst):
    results = [result(FAIL if n == worst else PASS, n) for n in range(3)]
    assert [parts.add(one, case_in(one)) for one in results[:2]] == [None, None]
    assert parts.are_missing(PASS.id)
    made = parts.add(results[2], case_in(results[2]))
    assert (made.id, made.verdict, made.evidence) == (PASS.id, "fail", "it is left")
    assert not parts.are_missing(PASS.id)
    last = results[2]
    assert (last.outcome, last.longrepr) == ("failed", "it is left")
    assert case_in(last) == made


def test_case_of_one_batch_is_what_it_came_to():
    parts = Parts()
    parts.expect(NODES[:1])
    one = result(PASS, 0)
    assert parts.add(one, case_in(one)) == PASS


@pytest.mark.parametrize(("case", "left"), [(PASS, []), (FAIL, [FAIL])])
def test_what_is_broken_is_told_though_results_are_missing(parts, case, left):
    one = result(case, 0)
    assert parts.add(one, case_in(one)) is None
    assert parts.incomplete_broken() == left
