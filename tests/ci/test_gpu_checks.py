"""The checks for a GPU: bounded, saved step by step, and never green by themselves."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.append(str(Path(__file__).parents[2] / "ci"))

import gpu_checks
import gpu_gate

ROOT = Path(__file__).parents[2]
SLEEPS = "import time; time.sleep(60)"


def program(text):
    return (sys.executable, "-c", text)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a step; return its row of the summary.

    It runs where no other process is: what is below pytest would be taken for its.
    """

    def run_bounded(command, limit, pass_fds, **streams):
        try:
            status = subprocess.run(command, timeout=limit, **streams).returncode
        except subprocess.TimeoutExpired:
            status = None
        return SimpleNamespace(status=status, seconds=0.1)

    monkeypatch.setattr(gpu_checks.bounded, "run", run_bounded)

    def run_step(text, limit):
        step = gpu_checks.Step("one", "what it shows", limit, program(text))
        return gpu_checks.run_step(step, tmp_path, 0)

    return run_step


@pytest.mark.parametrize(
    ("text", "limit", "status"),
    [
        ("print('all of it held')", 30.0, "held"),
        ("import sys; sys.exit(1)", 30.0, "broken"),
        ("import os; os.abort()", 30.0, "crashed"),
        (SLEEPS, 1.0, "hung"),
    ],
)
def test_a_step_has_a_status_and_what_it_said(run, text, limit, status):
    row = run(text, limit)
    assert row["status"] == status
    assert row["said"] == ("all of it held" if status == "held" else "")


def words_of(*, emulated, libraries):
    facts = {"emulated": emulated, "met": {"libraries": libraries}}
    every = gpu_checks.steps("py", Path("out"), "lock", facts)
    return {step.name: " ".join(map(str, step.command)) for step in every}


def test_emulated_steps_say_so_and_those_of_a_device_do_not():
    emulated = words_of(emulated=True, libraries={"torch": "2"})
    assert all("emulated" in words for words in emulated.values())
    real = words_of(emulated=False, libraries={"torch": "2"})
    assert not any("emulated" in words for words in real.values())
    assert set(real) - set(emulated) == {"torch"}
    assert "torch" not in words_of(emulated=False, libraries={})


@pytest.mark.parametrize("broken", ["", "rules"])
def test_a_step_that_does_not_hold_stops_no_other(monkeypatch, tmp_path, broken):
    facts = {"extra": "cuda13", "emulated": False}
    monkeypatch.setattr(gpu_checks, "examined", lambda file, emulated: dict(facts))
    monkeypatch.setattr(gpu_checks, "refuse_unseen", lambda *ignored: None)
    monkeypatch.setattr(gpu_checks, "versions", lambda *ignored: {"libraries": {}})
    saved, summary = [], tmp_path / "summary.json"

    def run_step(step, *ignored):
        saved.append(len(json.loads(summary.read_text())["steps"]))
        return {"name": step.name, "status": "hung" if step.name == broken else "held"}

    monkeypatch.setattr(gpu_checks, "run_step", run_step)
    options = SimpleNamespace(python="py", emulated=False, lock="lock")
    held = gpu_checks.check(options, tmp_path, tmp_path, 0)
    assert held == (not broken)
    assert saved == [0, 1, 2, 3, 4], "each row is saved before the next step"
    names = [row["name"] for row in json.loads(summary.read_text())["steps"]]
    assert names == ["virtual", "rules", "cost", "gate", "memory"]


HOLDS = """
import sys, time; sys.path.insert(0, {ci!r})
import bounded, gpu_gate
bounded.GRACE = 0.1
bounded.end_with_signals()
text = "import os, time; open({file!r}, 'w').write(f'{{os.getpid()}} '); time.sleep(60)"
with gpu_gate.turn({lock!r}, 0.0) as held:
    bounded.run((sys.executable, "-c", text), 50.0, pass_fds=(held,))
"""


@pytest.fixture
def holder(tmp_path):
    """A program that has the lock and runs a step, and the id of the step's process."""
    file, lock = tmp_path / "started", str(tmp_path / "lock")
    names = {"ci": str(ROOT / "ci"), "lock": lock, "file": str(file)}
    with subprocess.Popen(program(HOLDS.format(**names))) as running:
        while not (file.exists() and file.read_text().endswith(" ")):
            assert running.poll() is None
        yield running, int(file.read_text())
        running.kill()


def test_a_step_that_outlives_the_program_keeps_the_turn_of_the_host(holder, tmp_path):
    running, step = holder
    running.kill()
    running.wait()
    try:
        assert gpu_gate._taken(str(tmp_path / "lock")) is None
    finally:
        os.kill(step, signal.SIGKILL)


def test_a_signal_ends_the_step_and_what_it_started(holder):
    running, step = holder
    running.send_signal(signal.SIGTERM)
    assert running.wait(30) == 128 + signal.SIGTERM
    assert not os.path.exists(f"/proc/{step}")
