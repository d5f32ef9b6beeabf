"""Each way of being wrong gets its verdict, and the run goes on to its end."""

from __future__ import annotations

import pytest

LEDGER = (
    "--case=test_share.py::test_receiver_finds_values_shape_and_dtype*",
    "--case=test_ledger.py::test_nothing_is_left*",
)
CASES = ("--clause=SHARE-1", "--clause=SHARE-3")


@pytest.mark.parametrize(
    ("miniature", "verdict", "evidence"),
    [
        ("crashes", "crash", "died of SIGSEGV while it was asked to operate write"),
        ("hangs", "hang", "gave no answer within 2 s to: operate write"),
        ("plain", "fail", "not so:"),
        ("loses_the_tensor", "fail", "what arrived has another form"),
    ],
)
def test_verdict_and_evidence_say_what_happened(suite, miniature, verdict, evidence):
    done = suite(f"--impl=miniatures:{miniature}", "--clause=SHARE-1")
    found = [case for case in done.report.cases if evidence in case.evidence]
    assert {case.verdict for case in found} == {verdict}
    assert "same" in {case.repeated for case in done.report.cases}
    assert done.status == 1
    assert done.report.complete


def test_failure_is_not_repeated_where_nobody_wants_it(suite):
    chosen = ("--impl=miniatures:plain", "--clause=SHARE-1", "--no-repetition")
    done = suite(*chosen)
    assert "fail" in done.verdicts.values()
    assert {case.repeated for case in done.report.cases} == {None}
    assert done.status == 1


def test_run_goes_on_after_a_crash(suite):
    done = suite("--impl=miniatures:crashes", *CASES)
    assert {"crash", "pass"} <= set(done.verdicts.values())


def test_implementation_that_raises_on_the_ladder_blocks_every_case(suite):
    done = suite("--impl=miniatures:raises", *CASES)
    assert set(done.verdicts.values()) == {"blocked"}
    assert "RuntimeError: no such segment" in done.report.cases[0].evidence
    assert done.status == 1


def test_implementation_whose_processes_die_blocks_every_case(suite):
    done = suite("--impl=miniatures:dies_at_start", *CASES)
    assert set(done.verdicts.values()) == {"blocked"}
    assert "owner exited with status 3" in done.report.cases[0].evidence


@pytest.mark.parametrize(
    ("miniature", "evidence"),
    [
        ("leaks_one_descriptor", "1 more descriptors"),
        ("leaves_a_file", "the segment miniature-"),
    ],
)
def test_ledger_sees_a_single_leak(suite, miniature, evidence):
    done = suite(f"--impl=miniatures:{miniature}", *LEDGER)
    found = [case for case in done.report.cases if case.verdict == "fail"]
    closing = "test_ledger.py::test_nothing_is_left_of_what_the_cases_dropped"
    assert found[0].test == closing
    assert evidence in found[0].evidence
    assert "after test_" in found[0].evidence


def test_ledger_sees_no_leak_where_there_is_none(suite):
    done = suite("--impl=miniatures:plain", *LEDGER)
    assert set(done.verdicts.values()) == {"pass"}
    assert done.status == 0


def test_verdicts_are_the_same_under_xdist(suite):
    chosen = ("--impl=numpy-copy", *CASES, "--start-method=fork", "--clause=VIEW-3")
    alone, beside = suite(*chosen), suite(*chosen, "-n2")
    assert alone.verdicts == beside.verdicts
    assert set(alone.verdicts.values()) == {"pass", "fail"}
    assert (alone.status, beside.status) == (1, 1)


def test_profile_that_is_not_claimed_is_unsupported_and_listed(suite):
    done = suite("--impl=miniatures:plain", "--clause=GRAD-1", "--clause=SHARE-3")
    unsupported = [c for c in done.report.cases if c.verdict == "unsupported"]
    assert {case.clauses for case in unsupported} == {("GRAD-1",)}
    assert "'grad' is not claimed" in unsupported[0].evidence
    assert done.status == 0


def test_expected_deviation_is_tolerated_and_still_broken(suite):
    expectations = suite.folder / "expected.toml"
    expectations.write_text(
        '[[expect]]\nclause = "SHARE-1"\noutcomes = ["fail"]\n'
        'cause = "it copies"\ndate = 2026-11-21\n'
    )
    chosen = ("--impl=miniatures:plain", "--clause=SHARE-1")
    done = suite(*chosen, f"--expectations={expectations}")
    assert done.status == 0
    assert done.report.summary.clauses["SHARE-1"].verdict == "fail"
    assert {case.cause for case in done.report.cases} == {"it copies"}
