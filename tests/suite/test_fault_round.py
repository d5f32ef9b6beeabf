"""How a fault strikes processes, told without an implementation."""

import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest
from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.adapter_fields import load_schema
from sharedtensor_conformance.chapters.fault_round import FaultRound, is_ended_by
from sharedtensor_conformance.chapters.fault_table import MANAGER, STEPS, cells
from sharedtensor_conformance.chapters.test_fault import strike

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
        strike(found[name], Stage(), replace(ARENA, **changes))
    assert rounds == [name in exact for name in ("map", "send")]


def test_steps_that_can_be_declared_are_those_of_the_table():
    declared = load_schema()["properties"]["trace_steps"]
    names = [step.name for step in STEPS if step.actor != MANAGER]
    assert declared["items"]["enum"] == names
    assert declared["title"] == f"some of {', '.join(names)}"
