"""How a fault strikes processes, told without an implementation."""

import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.adapter_fields import load_schema
from sharedtensor_conformance.chapters.fault_round import FaultRound, is_ended_by
from sharedtensor_conformance.chapters.fault_table import MANAGER, STEPS, Cell, cells
from sharedtensor_conformance.chapters.test_fault import run_cell
from sharedtensor_conformance.harness.case.checks import wait_until
from sharedtensor_conformance.harness.kernel import process_tree

HANDLES = {
    "nothing": "",
    "ignores": "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "handles": "signal.signal(signal.SIGTERM, print)",
    "blocks": "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})",
}


@pytest.mark.parametrize("how", HANDLES)
def test_signal_ends_who_does_nothing_against_it(how):
    program = f"import signal; {HANDLES[how]}; print(flush=True); input()"
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], **streams) as process:
        process.stdout.readline()
        assert is_ended_by(process.pid, "SIGTERM") == (how == "nothing")
        assert is_ended_by(process.pid, "SIGKILL")
        assert not is_ended_by(process.pid, "SIGSTOP")
        process.send_signal(signal.SIGKILL)


class SlowQueue:
    """An owner, and a peer whose message comes when it has been looked for twice."""

    def __init__(self):
        self.told = []
        self.owner = self.peer = self
        self.deadline, self.name, self.pid = 5, "owner", 0

    def has_message(self, owner, channel):
        self.told.append("looked")
        return len(self.told) > 2


@pytest.mark.parametrize("role", ["owner", "peer", "bystander"])
def test_message_has_left_its_sender_before_somebody_is_stopped(monkeypatch, role):
    """One that has not may wait until its sender goes on: FAULT-3."""
    stage = SlowQueue()
    round = FaultRound.__new__(FaultRound)
    receive = next(step for step in STEPS if step.name == "receive")
    round.cell = Cell(receive, role, "SIGSTOP")
    round.stage, round.unreceived, round.gone = stage, 1, set()
    for name in ("perform", "check_others_can_share", "restore"):
        monkeypatch.setattr(round, name, lambda *_: None)
    monkeypatch.setattr(round, "strike", lambda: stage.told.append("stopped"))
    round.strike_from_outside("get")
    assert stage.told == ["looked", "looked", "looked", "stopped"]


CLAIMS = frozenset({"core", "share", "fault-table", "trace-points"})
ARENA = Implementation("arena", "arena:Operations", CLAIMS)


class Stage:
    def fresh(self):
        return nullcontext(self)


@pytest.mark.parametrize(
    ("changes", "exact"),
    [
        ({}, ["map", "send"]),
        ({"trace_steps": ("send", "receive")}, ["send"]),
        ({"claims": CLAIMS - {"trace-points"}}, []),
    ],
)
def test_process_is_held_at_the_steps_that_are_declared(monkeypatch, changes, exact):
    rounds = []
    monkeypatch.setattr(FaultRound, "__init__", lambda *_, exact: rounds.append(exact))
    monkeypatch.setattr(FaultRound, "run", lambda round: None)
    found = {cell.step.name: cell for cell in cells()}
    for name in ("map", "send"):
        run_cell(found[name], Stage(), replace(ARENA, **changes))
    assert rounds == [name in exact for name in ("map", "send")]


def test_steps_that_can_be_declared_are_those_of_the_table():
    declared = load_schema()["properties"]["trace_steps"]
    names = [step.name for step in STEPS if step.actor != MANAGER]
    assert declared["items"]["enum"] == names
    assert declared["title"] == f"some of {', '.join(names)}"


def is_stopped(pid):
    """Return whether a process is stopped."""
    return process_tree.status(pid)["State"].startswith("T")


@pytest.mark.parametrize("restored", [False, True])
def test_manager_is_stopped_until_others_may_have_waited_for_it(restored):
    """Who waits for a stopped manager breaks MGR-18 alone, and not FAULT-5."""
    round = FaultRound.__new__(FaultRound)
    round.restorers = []
    answer = 1000 if restored else 0.4
    round.stage = SimpleNamespace(timeouts=SimpleNamespace(answer=answer))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as process:
        round.stop_briefly(process.pid)
        assert not restored or is_stopped(process.pid)
        if restored:
            round.restore()
        assert wait_until(lambda: not is_stopped(process.pid), 5)
        round.restore()
        process.kill()
