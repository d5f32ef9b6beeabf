"""What an implementation does decides its verdict, and the options what comes of it.

What the suite makes of each way of being faulty is in test_faulty_implementations.py.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sharedtensor_conformance.plugin import execution
from sharedtensor_conformance.report.verdicts import Verdict
from suites import NOTHING_LEFT, entry

CASES = ("--clause=SHARE-3", "--case=test_share.py*")
GRADS = "--case=test_grad.py*"
TWO = "--case=test_share.py::test_receiver_sees_what_the_sender_writes_after_the_send*"
"""The two cases of one test; where nothing is shared they fail."""


def test_run_goes_on_after_a_crash(suite):
    values = "--case=test_share.py::test_receiver_finds_values_shape_and_dtype*"
    done = suite("--impl=miniatures:crashes", TWO, values)
    assert {"crash", "pass"} <= set(done.verdicts.values())
    crashed = [case for case in done.cases if case.verdict == "crash"]
    said = "died of SIGSEGV while it was asked to operate write"
    assert all(said in case.evidence for case in crashed)
    assert "same" in {case.repeated for case in crashed}
    assert done.status == 1
    assert done.report.complete


def test_failure_is_not_repeated_where_nobody_wants_it(suite):
    done = suite("--impl=miniatures:plain", TWO, "--no-repetition")
    assert "fail" in done.verdicts.values()
    assert {case.repeated for case in done.cases} == {None}
    assert done.status == 1


def test_implementation_that_raises_in_the_smoke_test_blocks_every_case(suite):
    done = suite("--impl=miniatures:raises", *CASES)
    assert set(done.verdicts.values()) == {"blocked"}
    assert "RuntimeError: no such segment" in done.cases[0].evidence
    assert done.status == 1


def test_profile_that_is_not_claimed_is_unsupported_and_listed(suite):
    done = suite("--impl=miniatures:plain", "--clause=GRAD-1", *CASES, GRADS)
    unsupported = [case for case in done.cases if case.verdict == "unsupported"]
    assert {case.clauses for case in unsupported} == {("GRAD-1",)}
    assert "'grad' is not claimed" in unsupported[0].evidence
    assert done.status == 0


def test_expected_deviation_is_tolerated_and_still_broken(suite):
    expectations = suite.expecting(entry("SHARE-1", cause="it copies"))
    done = suite("--impl=miniatures:plain", TWO, expectations)
    assert done.status == 0
    assert "2 known" in done.text
    assert done.report.summary.clauses["SHARE-1"].verdict == "fail"
    assert {case.cause for case in done.cases} == {"it copies"}


@pytest.mark.parametrize(
    ("checks", "calls", "evidence"),
    [
        (0, 1, "the test made no checks"),
        (1, 0, "the test made no remote_calls"),
        (1, 1, ""),
    ],
)
def test_test_that_judges_nothing_is_an_error(monkeypatch, checks, calls, evidence):
    counted = SimpleNamespace(checks=checks, remote_calls=calls)
    monkeypatch.setattr(execution, "tally", counted)
    outcome = execution.Outcome.of_return()
    verdict = Verdict.ERROR if evidence else Verdict.PASS
    assert (outcome.verdict, outcome.evidence) == (verdict, evidence)


# What a clause leaves open

REFUSED = ("SHARE-5", "SHARE-13", "VIEW-9")
"""The clauses about what an implementation may refuse to copy, or to send."""


LEFT_BY_OTHERS = ("LIFE-8", "LIFE-10", "LIFE-13", "FS-9", "FS-10")
"""The clauses about names that only others can remove."""


@pytest.mark.takes(30)
def test_implementation_without_a_manager_can_remove_names_when_it_shares(suite):
    chosen = (f"--clause={id}" for id in LEFT_BY_OTHERS)
    how = ("--strategy=file_system", "--start-method=fork", "-k", "not histories")
    done = suite("--impl=faulty_reference:sweeps_at_calls", *chosen, *how)
    assert (done.status, done.left) == (0, NOTHING_LEFT)
    permitted = [case for case in done.cases if not case.needs]
    assert {case.verdict for case in permitted} == {Verdict.PASS}
    assert {id for case in done.cases for id in case.clauses} >= set(LEFT_BY_OTHERS)


@pytest.mark.takes(30)
def test_implementation_that_refuses_all_copies_is_judged(suite):
    chosen = (f"--clause={id}" for id in REFUSED)
    where = ("--strategy=file_descriptor", "--start-method=fork")
    done = suite("--impl=faulty_reference:refuses_copies", *chosen, *where)
    assert (done.status, done.left) == (0, NOTHING_LEFT)
    assert {case.verdict for case in done.cases} == {Verdict.PASS}
    assert {id for case in done.cases for id in case.clauses} >= set(REFUSED)
