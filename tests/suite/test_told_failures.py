"""What evidence says where the kind of an outcome, and not a value, is wrong."""

import os
from types import SimpleNamespace

import pytest
from sharedtensor_conformance.chapters.group_actions import join_group
from sharedtensor_conformance.chapters.tensor_actions import make_many
from sharedtensor_conformance.chapters.test_load import circulating_buffers
from sharedtensor_conformance.chapters.test_mgr import check_nothing_left
from sharedtensor_conformance.chapters.test_spawn import check_join_error
from sharedtensor_conformance.harness.case import checks
from sharedtensor_conformance.harness.case.outcomes import (
    CheckFailed,
    DeadlineExceeded,
    HarnessFault,
)
from sharedtensor_conformance.harness.remote.actor import Actor
from sharedtensor_conformance.harness.remote.actors import ActorProxy
from sharedtensor_conformance.harness.stage.process_ends import ProcessEnds
from sharedtensor_conformance.harness.stage.timeouts import Timeouts


@pytest.mark.parametrize("returned", [True, None])
def test_joining_call_that_returns_is_told(returned):
    with pytest.raises(CheckFailed, match=f"raises; it returned {returned}"):
        check_join_error(returned, "ProcessRaisedException")


def test_what_is_left_is_named():
    ledger = SimpleNamespace(left_behind=lambda: ["a-name", "process a manager"])
    with pytest.raises(CheckFailed, match=r"nothing is left.*'process a manager'"):
        check_nothing_left(SimpleNamespace(ledger=ledger, grace=0.01))


class Asked(ActorProxy):
    """Notes what it is said to do."""

    def ask(self, what, *arguments):
        pass

    def receive(self, doing, deadline=0.0):
        return {"ok": doing}

    def result(self, message, doing):
        return doing


def test_action_that_gets_no_answer_is_named():
    asked = Asked(SimpleNamespace(timeouts=Timeouts(20.0, 90.0, 3.0)), "owner")
    assert asked.exchange(9.0, "run", join_group, 7) == "join_group"
    assert asked.exchange(9.0, "run", Actor.drop, 7) == "drop"
    assert asked.exchange(9.0, "operate", "share", 7) == "operate share"
    assert asked.exchange(9.0, "leave") == "leave"


def test_function_that_a_process_cannot_import_is_not_sent():
    owner = ActorProxy(SimpleNamespace(timeouts=Timeouts(20.0, 90.0, 3.0)), "owner")
    with pytest.raises(HarnessFault, match="a function cannot be sent to an actor"):
        owner.ask("run", lambda actor: None)


def test_arguments_have_no_names():
    host = SimpleNamespace(timeouts=Timeouts(20.0, 90.0, 3.0))
    with pytest.raises(HarnessFault, match=r"no names in a request: \['count'\]"):
        ActorProxy(host, "owner").start(make_many, 1, count=3)


@pytest.mark.parametrize(
    ("doing", "deadline", "why"),
    [
        ("join_group", 90.0, " (`patience` of the adapter: processes may have"),
        ("join_group", 20.0, ""),
        ("prepare", 90.0, ""),
    ],
)
def test_deadline_that_is_not_that_of_an_answer_says_so(doing, deadline, why):
    stage = SimpleNamespace(actors=[], timeouts=Timeouts(20.0, 90.0, 3.0))
    ends = ProcessEnds(stage)
    said = str(ends.no_answer_error(SimpleNamespace(name="owner"), doing, deadline))
    told = f"owner gave no answer within {deadline:g} s to: {doing}"
    assert said.startswith(told + why)
    assert bool(why) == ("`patience`" in said)


@pytest.mark.parametrize(
    ("load", "given"), [(0.0, 10.0), (4.0, 10.0), (8.0, 20.0), (40.0, 30.0)]
)
def test_time_limits_are_longer_on_an_overloaded_machine(load, given, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    waits = []
    monkeypatch.setattr(checks, "wait_until", lambda _, within: waits.append(within))
    with pytest.raises(checks.CheckFailed) as failed:
        checks.eventually(lambda: False, "it is so", 10.0)
    assert waits == [given]
    assert (f"given {given:.0f} s" in str(failed.value)) == (given > 10.0)


def test_owner_that_gives_no_answer_is_not_asked_to_wait_for_workers():
    def no_answer(function, *arguments):
        raise DeadlineExceeded(f"no answer to: {function.__name__}")

    def kill():
        no_answer(Actor.join)

    worker = SimpleNamespace(kill=kill, start=lambda *what: None)
    owner = SimpleNamespace(
        open_channel=lambda kind: None,
        start_peer=lambda arguments: worker,
        make=lambda values: None,
        run=no_answer,
    )
    with (
        pytest.raises(DeadlineExceeded, match="use_buffers"),
        circulating_buffers(owner, "queue") as (use, _),
    ):
        use()
