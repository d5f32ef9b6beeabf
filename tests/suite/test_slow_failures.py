"""A run with many unexpected hangs, or slow failures, ends soon and says what it left.

What it does not wait for is neither held nor broken: it is ``blocked``.
"""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from sharedtensor_conformance.harness.case.answer_waits import (
    LAST_LIMIT,
    STARTS,
    AnswerWaits,
    answer_waits,
)
from sharedtensor_conformance.harness.case.checks import eventually
from sharedtensor_conformance.harness.case.outcomes import CheckFailed, DeadlineExceeded
from sharedtensor_conformance.harness.remote.actors import ActorProxy
from sharedtensor_conformance.harness.stage.timeouts import Timeouts
from sharedtensor_conformance.plugin.slow_failures import (
    LONG_WAIT,
    MANY,
    SHORTEST_LIMIT,
    VERY_MANY,
    SlowFailures,
)
from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.signatures import NOT_WAITED
from sharedtensor_conformance.report.verdicts import Verdict

IMPL = "--impl=faulty_implementations"
CHOSEN = ("--clause=SHARE-1", "--clause=SHARE-2", "-k", "test_share.py")
WAIT = 2
"""The seconds that each of these cases waits for an answer, at the least."""
HERE, THERE = "default-fork", "default-spawn"


def claimed(done):
    return [case for case in done.cases if case.verdict is not Verdict.UNSUPPORTED]


@pytest.mark.parametrize(
    ("name", "verdict", "evidence"),
    [
        ("hangs_in_each_receive", "hang", "gave no answer within 2 s to: get"),
        ("waits_in_each_receive", "fail", "TimeoutError: nothing came"),
    ],
)
@pytest.mark.takes(30)
def test_what_many_cases_have_shown_is_not_waited_for(suite, name, verdict, evidence):
    done = suite(f"{IMPL}:{name}", *CHOSEN)
    judged, unjudged = claimed(done)[:MANY], claimed(done)[MANY:]
    assert [case.verdict for case in judged] == MANY * [verdict]
    assert all(evidence in case.evidence for case in judged)
    assert {case.verdict for case in unjudged} == {Verdict.BLOCKED}
    assert all(case.evidence.startswith(NOT_WAITED) for case in unjudged)
    assert all(f"first '{judged[0].id}'" in case.evidence for case in unjudged)
    ended = [case for case in unjudged if "\nits wait ended: " in case.evidence]
    others = [case for case in unjudged if "\nit was not run, as " in case.evidence]
    assert len(ended) + len(others) == len(unjudged) > len(others) > 0
    assert len({case.test for case in (*judged, *ended)}) > len(ended)
    assert all(case.seconds < WAIT for case in others)
    assert done.status == 1
    said = " ".join(done.text.split())
    assert f"| {NOT_WAITED}3 cases hung or failed after a long wait" in said
    assert "blocked and not judged" in said


@pytest.mark.parametrize("option", ["--all-cases", "--strict"])
@pytest.mark.takes(12)
def test_full_run_judges_each_case(suite, option):
    chosen = ("--clause=SHARE-1", "-k", "test_share.py", "--no-repetition", option)
    done = suite(f"{IMPL}:hangs_in_each_receive", *chosen)
    assert {case.verdict for case in claimed(done)} == {Verdict.HANG}
    assert len(claimed(done)) > MANY


# In this process


def of(number, verdict=Verdict.HANG, clauses=("SHARE-1",), **fields):
    test = f"t.py::test_{number}"
    return Case(f"{test}[x]", test, clauses, verdict, expected=False, **fields)


def noted(*cases, full=False, configuration=HERE, excess=0.0):
    slow = SlowFailures(full=full)
    for case in cases:
        slow.note(case, configuration, excess)
    return slow


def many(number=MANY):
    return [of(number) for number in range(number)]


def outcome(slow, case):
    assert slow.save_time
    return slow.outcome(case, case.clauses)


def test_after_few_slow_failures_nothing_changes():
    slow = noted(*many(MANY - 1))
    assert not slow.are_many(HERE)
    assert not slow.save_time


@pytest.mark.parametrize(
    ("verdict", "excess", "counts"),
    [
        (Verdict.HANG, 0.0, True),
        (Verdict.FAIL, LONG_WAIT, True),
        (Verdict.CRASH, LONG_WAIT, True),
        (Verdict.FAIL, LONG_WAIT / 2, False),
        (Verdict.PASS, LONG_WAIT, False),
        (Verdict.ERROR, LONG_WAIT, False),
    ],
)
def test_failure_is_slow_by_its_wait_and_not_by_its_duration(verdict, excess, counts):
    cases = [of(number, verdict, seconds=60.0) for number in range(MANY)]
    assert noted(*cases, excess=excess).save_time == counts


def test_expected_hangs_do_not_count():
    cases = [Case(f"{n}", f"{n}", ("SHARE-1",), Verdict.HANG) for n in range(MANY)]
    assert all(case.expected for case in cases)
    assert not noted(*cases).save_time


def test_slow_failures_count_in_all_configurations():
    slow = noted(*many())
    assert slow.are_many(THERE)
    assert slow.save_time


def test_in_a_full_run_hangs_count_in_their_configuration_and_nothing_is_left_out():
    slow = noted(*many(), full=True)
    assert slow.are_many(HERE)
    assert not slow.are_many(THERE)
    assert not slow.save_time
    late = [of(number, Verdict.FAIL) for number in range(MANY)]
    assert not noted(*late, full=True, excess=LONG_WAIT).are_many(HERE)


def test_case_that_usually_takes_long_has_more_time():
    assert SlowFailures.limit(4.0) == 8.0
    assert SlowFailures.limit(0.1) == SHORTEST_LIMIT


def test_further_case_of_a_test_that_waited_in_vain_is_not_run():
    slow = noted(*many())
    found = outcome(slow, of(0))
    assert found.verdict is Verdict.BLOCKED
    assert "as 't.py::test_0[x]' waited in vain" in found.evidence
    assert outcome(slow, of(MANY)) is None


def test_further_case_of_a_clause_is_run_until_very_many_waited_in_vain():
    ended = [of(n, Verdict.BLOCKED, remote_calls=2) for n in range(MANY, VERY_MANY)]
    assert outcome(noted(*many(), *ended[1:]), of(99)) is None
    slow = noted(*many(), *ended)
    assert outcome(slow, of(99)).verdict is Verdict.BLOCKED
    assert outcome(slow, of(99, clauses=("SHARE-1", "SHARE-2"))) is None


def test_case_that_was_not_run_has_not_waited():
    unrun = [of(n, Verdict.BLOCKED) for n in range(MANY, VERY_MANY)]
    assert outcome(noted(*many(), *unrun), of(99)) is None


# The waits


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch):
    """What is timed here does not depend on the load of the machine."""
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))


def waits_of(limit):
    waits = AnswerWaits()
    waits.reset(limit)
    return waits


@pytest.mark.parametrize(("limit", "seconds"), [(None, 20.0), (0.5, 0.5), (60.0, 20.0)])
def test_no_answer_is_waited_for_longer_than_its_deadline_or_the_limit(limit, seconds):
    with waits_of(limit).waiting("get", 20.0) as wait:
        assert wait.limit == seconds


@pytest.mark.parametrize(
    ("answered", "limit"), [(True, 10.0), (False, 0.5)], ids=["answered", "raised"]
)
def test_answer_that_took_long_before_is_waited_for_longer(
    monkeypatch, answered, limit
):
    waits = waits_of(0.5)
    clock = iter([0.0, 5.0, 5.0, 5.0, 5.0, 5.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with waits.waiting("get", 20.0) as wait:
        wait.answered = answered
    assert waits.longest == 5.0
    with waits.waiting("get", 20.0) as again, waits.waiting("put", 20.0) as other:
        assert (again.limit, other.limit) == (limit, 0.5)


def test_time_in_which_a_process_waits_itself_is_added(monkeypatch):
    waits = waits_of(0.5)
    clock = iter([0.0, 7.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with waits.waiting("get_within", 26.0, own=6.0) as wait:
        assert wait.limit == 6.5
    assert waits.longest == 1.0


@pytest.mark.parametrize(
    ("seconds", "limit"),
    [(0.0, 0.5), (20.0, 0.5), (26.0, 6.5), (90.0, 6.5), (270.0, 6.5)],
    ids=["usual", "declared", "waits itself", "starts", "starts several"],
)
def test_each_request_is_limited(monkeypatch, seconds, limit):
    waits = waits_of(0.5)
    waits._longest_start = 2.0
    monkeypatch.setattr(
        "sharedtensor_conformance.harness.remote.calls.answer_waits", waits
    )
    asked = ActorProxy(SimpleNamespace(timeouts=Timeouts(20.0, 90.0, 3.0)), "owner")
    given = []
    monkeypatch.setattr(asked, "_receive", lambda _, limit: given.append(limit) or {})
    asked.receive("get", seconds)
    assert given == [limit]


def test_after_a_wait_that_ended_the_others_of_the_case_are_short(monkeypatch):
    waits = waits_of(4.0)
    clock = iter([0.0, 9.0, 9.0, 9.0, 9.0, 9.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with waits.waiting("open_pool", 90.0, starts=True) as wait:
        wait.answered = True
    with pytest.raises(DeadlineExceeded), waits.waiting("get", 20.0):
        raise DeadlineExceeded("no answer")
    with waits.waiting("open_pool", 90.0, starts=True) as wait:
        assert wait.limit == LAST_LIMIT


def test_check_that_waited_in_vain_counts_as_a_wait():
    answer_waits.reset(None)
    eventually(lambda: True, "it holds", within=9.0)
    assert answer_waits.longest == 0.0
    with pytest.raises(CheckFailed):
        eventually(lambda: False, "it holds", within=0.01)
    assert answer_waits.longest >= 0.01
    answer_waits.reset(None)


def test_what_took_long_on_a_busy_machine_is_not_prolonged_twice(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (4.0 * os.cpu_count(), 0.0, 0.0))
    waits = waits_of(0.5)
    clock = iter([0.0, 8.0, 8.0, 8.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with waits.waiting("get", 20.0) as wait:
        wait.answered = True
    with waits.waiting("get", 20.0) as wait:
        assert wait.limit == 8.0


def test_request_that_starts_processes_has_the_time_for_it(monkeypatch):
    waits = waits_of(0.5)
    clock = iter([0.0, 2.0, 2.0, 90.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with waits.starting():
        pass
    with waits.waiting("open_pool", 90.0, starts=True) as wait:
        assert wait.limit == 0.5 + STARTS * 2.0
    assert waits.longest == 0.0


@pytest.mark.parametrize(
    ("limit", "ended"), [(None, ""), (60.0, ""), (0.5, "no answer")]
)
def test_wait_that_ended_before_its_deadline_is_noted(limit, ended):
    waits = waits_of(limit)
    with pytest.raises(DeadlineExceeded), waits.waiting("get", 20.0):
        raise DeadlineExceeded("no answer")
    assert waits.ended == ended
    waits.reset(limit)
    assert waits.ended == ""
