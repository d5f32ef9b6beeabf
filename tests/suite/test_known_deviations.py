"""A known deviation is shown by its cheapest case; what has the same cause follows."""

from __future__ import annotations

import datetime
from dataclasses import replace
from types import SimpleNamespace

import pytest
from sharedtensor_conformance.harness.ledger.leaks import Growth, Leak, Leaks
from sharedtensor_conformance.plugin.cleanup import Cleanup
from sharedtensor_conformance.plugin.known_deviations import (
    KnownDeviations,
    cheapest_first,
)
from sharedtensor_conformance.report.expectations import (
    Expectation,
    Expectations,
    load_expectations,
)
from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.verdicts import Verdict
from suites import entry

HERE = "default-fork"
CHOSEN = (
    "--clause=SHARE-1",
    "--clause=SHARE-3",
    "--clause=LIFE-7",
    "-k",
    "test_share or test_ledger",
    "--start-method=fork",
)


def verdicts_of(done, clause):
    return [str(case.verdict) for case in done.cases if clause in case.clauses]


def test_other_cases_follow_from_the_first_and_clauses_are_as_in_a_run_of_all(suite):
    option = suite.expecting(entry("SHARE-1"))
    some = suite("--impl=numpy-copy", *CHOSEN, option)
    assert_others_follow(some)
    all = suite("--impl=numpy-copy", *CHOSEN, option, "--all-cases")
    assert "follows" not in all.verdicts.values()
    one, other = some.report.summary.clauses, all.report.summary.clauses
    assert one.keys() == other.keys()
    for id in one:
        assert (one[id].verdict, one[id].expected) == (
            other[id].verdict,
            other[id].expected,
        )


def test_other_cases_follow_from_the_first_under_xdist(suite):
    option = suite.expecting(entry("SHARE-1"))
    assert_others_follow(suite("--impl=numpy-copy", *CHOSEN, option, "-n2"))


def assert_others_follow(done):
    """Assert that one case has shown the deviation, and that none of them is a pass."""
    found = verdicts_of(done, "SHARE-1")
    assert found.count("fail") == 1
    assert found.count("follows") == len(found) - 1 > 3
    summary = done.report.summary
    result = summary.clauses["SHARE-1"]
    assert (result.verdict, result.expected) == ("fail", True)
    assert summary.verdicts["follows"] == found.count("follows")
    assert not summary.conforms
    assert done.status == 0
    count = found.count("follows")
    assert f"({count} follow from known deviations, not run)" in " ".join(
        done.text.split()
    )
    assert f"1 known, {count} follows" in done.text
    evidence = {case.evidence for case in done.cases if case.verdict == "follows"}
    (shown,) = (case.id for case in done.cases if case.verdict == "fail")
    assert evidence == {
        f"not run: it has the same cause as {shown}, which was confirmed"
    }


def test_run_of_a_newer_release_says_of_which_one_deviations_were_recorded(suite):
    option = suite.expecting('judged = "0.0.1"\n', entry("SHARE-1"))
    done = suite("--impl=numpy-copy", *CHOSEN[:1], *CHOSEN[3:], option)
    assert done.report.run.selection.carried_over == "0.0.1"
    said = " ".join(done.text.split())
    assert "is newer than 0.0.1, the newest release whose deviations" in said
    assert "SHARE-1" in said.partition("MUST, profile core, known, as in 0.0.1")[0]


def test_cases_that_are_named_are_run(suite):
    option = suite.expecting(entry("SHARE-1"))
    named = "--case=test_share.py::test_receiver_sees_what_the_sender_writes*"
    done = suite("--impl=numpy-copy", "--start-method=fork", named, option)
    assert set(done.verdicts.values()) == {"fail"}


def test_while_no_case_fails_as_expected_all_are_run(suite):
    option = suite.expecting(entry("SHARE-3"), entry("SHARE-1", "crash"))
    done = suite("--impl=numpy-copy", *CHOSEN, option)
    assert set(verdicts_of(done, "SHARE-3")) == {"pass"}
    assert set(verdicts_of(done, "SHARE-1")) == {"fail"}
    assert done.status == 1


@pytest.mark.takes(8)
def test_case_of_a_cause_that_hung_is_waited_for_less(suite):
    option = suite.expecting(entry("SHARE-1", "hang"))
    named = "--case=test_share.py::test_receiver_sees_what_the_sender_writes*"
    done = suite("--impl=miniatures:hangs", named, option)
    assert set(done.verdicts.values()) == {"hang"}
    first, *others = [case.evidence for case in done.cases]
    assert "gave no answer within 4 s" in first
    assert len(others) == 1
    assert "gave no answer within 3 s" in others[0]


@pytest.mark.takes(18)
def test_expected_hangs_leave_cases_of_other_causes_their_time(suite):
    option = suite.expecting(entry("SHARE-1", "hang"))
    expected = "--case=test_share.py::test_receiver_sees_what_*"
    other = "--case=test_share.py::test_sender_sees_what_the_receiver_writes*-to_peer]"
    named = (expected, other, "--no-repetition")
    done = suite("--impl=miniatures:hangs", *named, option)
    assert set(done.verdicts.values()) == {"hang"}
    *before, last = done.cases
    assert [case.expected for case in before] == 4 * [True]
    assert not last.expected
    assert "gave no answer within 4 s" in last.evidence


# In this process

EXPECTED = Expectations(
    "sample.toml",
    (
        Expectation(
            1, frozenset({Verdict.FAIL}), "why", datetime.date.today(), clause="GRAD-2"
        ),
    ),
)
FAILED = Case("a", "t", ("GRAD-2", "GRAD-3"), Verdict.FAIL)
OTHER = Case("b", "t", ("GRAD-2",), Verdict.ERROR)


@pytest.fixture
def known():
    return KnownDeviations(EXPECTED, "1.0")


def test_case_follows_one_that_failed_as_expected(known):
    assert known.outcome(OTHER, HERE) is None
    known.confirm(FAILED, HERE)
    assert known.outcome(OTHER, HERE).verdict is Verdict.FOLLOWS


@pytest.mark.parametrize(
    ("shown", "other", "where"),
    [
        (replace(FAILED, verdict=Verdict.PASS), OTHER, HERE),
        (replace(FAILED, verdict=Verdict.CRASH), OTHER, HERE),
        (FAILED, OTHER, "default-spawn"),
        (FAILED, replace(OTHER, clauses=("GRAD-2", "LIFE-1")), HERE),
        (FAILED, replace(OTHER, clauses=("GRAD-3",)), HERE),
    ],
    ids=["held", "not as expected", "elsewhere", "a clause more", "no such entry"],
)
def test_case_that_may_tell_something_is_run(known, shown, other, where):
    known.confirm(shown, HERE)
    assert known.outcome(other, where) is None


HANGS = Expectations(
    "sample.toml",
    tuple(
        Expectation(
            number, frozenset({Verdict.HANG}), cause, datetime.date.today(), clause=id
        )
        for number, (id, cause) in enumerate(
            [("VIEW-1", "lost"), ("VIEW-2", "lost"), ("LIFE-16", "locked")], 1
        )
    ),
)
HUNG = Case("a", "t", ("VIEW-1",), Verdict.HANG)


@pytest.mark.parametrize(
    ("shown", "other", "where", "is_known"),
    [
        (HUNG, HUNG, HERE, True),
        (HUNG, replace(HUNG, clauses=("VIEW-2",)), HERE, True),
        (HUNG, replace(HUNG, clauses=("LIFE-16",)), HERE, False),
        (HUNG, HUNG, "default-spawn", False),
        (replace(HUNG, verdict=Verdict.FAIL), HUNG, HERE, False),
        (replace(HUNG, clauses=("VIEW-3",)), HUNG, HERE, False),
    ],
    ids=["again", "same cause", "other cause", "elsewhere", "failed", "not expected"],
)
def test_hang_is_known_of_its_cause_in_its_configuration(shown, other, where, is_known):
    known = KnownDeviations(HANGS, "1.0")
    assert not known.has_hung(other, where)
    known.confirm(shown, HERE)
    assert known.has_hung(other, where) is is_known


def test_cheapest_case_comes_before_the_first_of_its_deviation():
    places = {"a": "", "b": "1", "c": "2", "d": "12", "e": "1", "f": ""}
    prices = {"b": 3, "c": 1, "d": 2, "e": 2}
    found = cheapest_first(list("abcdef"), lambda i: [*places[i]], lambda i: prices[i])
    assert "".join(found) == "adbcef"


def test_order_stays_where_all_cost_the_same():
    items = list("abcdef")
    assert cheapest_first(items, lambda item: "x", lambda item: 1) == items


# What is left, kind by kind

LEAKS = (
    "--impl=leaks:each_and_a_pipe",
    "--case=test_ledger.py::test_nothing_is_left_of_what*",
)
SENDS = "test_share.py::test_receiver_finds_values_shape_and_dtype"
WHERE = ("--strategy=file_descriptor", "--start-method=fork")


def leaking(*leaks):
    return entry("LIFE-7", leaks=leaks)


@pytest.mark.takes(9)
def test_each_kind_of_leak_is_found_and_is_expected_where_each_is_named(suite):
    option = suite.expecting(leaking("descriptor /dev/null", "descriptor pipe"))
    done = suite(*LEAKS, f"--case={SENDS}*", *WHERE, option)
    (closing,) = (case for case in done.cases if case.clauses == ("LIFE-7",))
    assert closing.verdict == "fail"
    assert set(closing.left) == set(FOUND)
    assert (closing.expected, done.status) == (True, 0)
    findings = closing.evidence.split("not back after ")[1:]
    other = [one for one in findings if " x pipe" in one]
    known = [one for one in findings if one not in other]
    assert any(one.count(f"\n  {SENDS}") > 1 for one in known), closing.evidence
    assert other, closing.evidence
    assert all("after 1 case:" in one and f"\n  {SENDS}" in one for one in other)


FOUND = ("descriptor /dev/null", "descriptor pipe")
LEFT = Case("a", "t", ("LIFE-7",), Verdict.FAIL, left=FOUND)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (leaking("descriptor /dev/null", "descriptor pipe"), True),
        (leaking("descriptor *"), True),
        (leaking("descriptor /dev/null"), False),  # a pipe was left, too
        (leaking(), False),
        (entry("LIFE-7"), False),
    ],
)
def test_kind_of_leak_that_is_not_named_is_not_expected(tmp_path, text, expected):
    file = tmp_path / "expected.toml"
    file.write_text(text)
    assert bool(load_expectations(file).covers(LEFT, "1.0")) == expected


def test_leak_that_a_failure_was_not_expected_to_leave_is_held_against_life_7(suite):
    fails = "test_share.py::test_receiver_sees_what_the_sender_writes_after_the_send"
    for leaks, verdict in ((["descriptor *"], "pass"), ([], "fail")):
        option = suite.expecting(entry("SHARE-1", leaks=leaks))
        chosen = (f"--case={fails}*", LEAKS[1], "--strategy=descriptor")
        done = suite("--impl=leaks:one", *chosen, option, "--all-cases")
        closing = [case for case in done.cases if case.clauses == ("LIFE-7",)]
        assert {case.verdict for case in closing} == {verdict}


@pytest.mark.parametrize(
    ("clause", "held"),
    [
        ("LOAD-6", False),  # a SHOULD, which judges what is left by itself
        ("LIFE-13", True),  # a MUST
        ("START-6", True),  # a SHOULD about something else
    ],
)
def test_failed_should_about_what_is_left_does_not_break_life_7(clause, held):
    growth = Growth([Leak(("LIFE-7",), "descriptor", "owner")], waited=2.0)
    stage = SimpleNamespace(
        supervision=SimpleNamespace(is_started=True),
        in_flight=False,
        settle=lambda: growth,
        leaks=Leaks(),
    )
    case = Case("t.py::test[x]", "t.py::test", (clause,), Verdict.FAIL, expected=False)
    cleanup = Cleanup(SimpleNamespace(current=stage), lambda case: None)
    assert cleanup.leaks_of(case, may_corrupt=False) is growth
    assert bool(stage.leaks.failure("LIFE-7")) == held
