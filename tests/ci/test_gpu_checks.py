"""The checks for a first device: saved step by step, resumed and bounded."""

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "ci"))
    return importlib.import_module("gpu_checks")


def program(text):
    return (sys.executable, "-c", text)


@pytest.fixture
def made(checks, tmp_path, monkeypatch):
    """Make steps, in a folder; a step is a program, and runs where no other process is.

    What is below pytest would be taken for a step's, so a step is run by `subprocess`.
    """

    def run(command, limit, **options):
        try:
            status = subprocess.run(command, timeout=limit, **options).returncode
        except subprocess.TimeoutExpired:
            status = None
        return SimpleNamespace(status=status, seconds=0.1)

    monkeypatch.setattr(checks.bounded, "run", run)

    def make(*every, key="k", emulated=False, again=(), budget=600.0):
        record = checks.Record(tmp_path, key, emulated=emulated)
        options = SimpleNamespace(again=list(again), budget=budget)
        held = checks._all(options, record, list(every), checks.monotonic())
        found = json.loads((tmp_path / "summary.json").read_text())
        return held, {one["name"]: one["status"] for one in found["steps"]}

    return make


def counted(checks, tmp_path, name, status=0):
    file = tmp_path / f"{name}.count"
    text = f"open({str(file)!r}, 'a').write('x'); import sys; sys.exit({status})"
    return checks.Step(name, name, 30, program(text))


def test_a_step_that_breaks_hangs_or_crashes_stops_no_other(checks, made, tmp_path):
    held, found = made(
        checks.Step("broken", "t", 30, program("import sys; sys.exit(1)")),
        checks.Step("crashed", "t", 30, program("import os; os.abort()")),
        checks.Step("hung", "t", 0.5, program("import time; time.sleep(60)")),
        checks.Step("absent", "t", 30, (), "there is no torch"),
        counted(checks, tmp_path, "last"),
    )
    names = ["broken", "crashed", "hung"]
    assert found == {n: n for n in names} | {"absent": "not run", "last": "held"}
    assert not held


def test_what_came_to_an_end_is_not_run_again_unless_it_is_asked_for(
    checks, made, tmp_path
):
    step = counted(checks, tmp_path, "one", status=1)
    count = tmp_path / "one.count"
    assert not made(step)[0]
    assert not made(step)[0]
    assert count.read_text() == "x"
    made(step, again=["one"])
    assert count.read_text() == "xx"
    made(step, key="another machine, or other code")
    assert count.read_text() == "xxx"


def test_a_step_that_was_interrupted_is_run_again(checks, made, tmp_path):
    step = counted(checks, tmp_path, "one")
    checks.Record(tmp_path, "k", emulated=False).put(step, checks.RUNNING)
    assert made(step) == (True, {"one": "held"})


def test_a_step_without_time_is_not_run_and_not_green(checks, made, tmp_path):
    step = counted(checks, tmp_path, "one")
    assert made(step, budget=0.0) == (False, {"one": "not run"})
    assert made(step) == (True, {"one": "held"})


def test_what_the_budget_ends_did_not_hang(checks, made):
    step = checks.Step("slow", "t", 60, program("import time; time.sleep(60)"))
    assert made(step, budget=1.5) == (False, {"slow": "not run"})


def test_results_of_the_emulated_runtime_and_of_a_device_are_not_mixed(
    checks, made, tmp_path
):
    made(counted(checks, tmp_path, "one"), emulated=True)
    assert "held (emulated)" in (tmp_path / "summary.md").read_text()
    assert "nothing here counts as CUDA" in (tmp_path / "summary.md").read_text()
    with pytest.raises(checks.Unfit, match="has results of the emulated runtime"):
        made(counted(checks, tmp_path, "two"))


def test_a_summary_that_is_none_is_told(checks, made, tmp_path):
    (tmp_path / "summary.json").write_text("[")
    with pytest.raises(checks.Unfit, match="is no summary"):
        made(counted(checks, tmp_path, "one"))


def test_every_clause_of_the_chapter_is_in_one_group(checks):
    text = (ROOT / "spec" / "cuda.md").read_text()
    known = {line.split()[-1] for line in text.splitlines() if "{clause} CUDA-" in line}
    grouped = [n for numbers in checks.GROUPS.values() for n in numbers.split()]
    assert sorted(grouped, key=int) == sorted(
        (id.removeprefix("CUDA-") for id in known), key=int
    )


def test_only_the_steps_that_are_asked_for_are_chosen(checks, tmp_path):
    record = checks.Record(tmp_path, "k", emulated=False)

    def chosen(*only):
        options = SimpleNamespace(again=[], only=only, emulated=False, lock="l")
        found = checks._chosen(options, "py", record, {"libraries": {}})
        return [step.name for step in found]

    assert chosen("torch", "rules") == ["rules", "torch"]
    assert chosen() == chosen("all") != []
    with pytest.raises(checks.Unfit, match="there is no step one"):
        chosen("one")


def test_limits_of_all_steps_are_said_and_emulated_ones_say_so(checks, tmp_path):
    facts = {"libraries": {}}
    every = list(checks.steps("py", tmp_path, facts, emulated=True, lock="l"))
    assert all(0 < step.limit <= 420 for step in every)
    for step in every:
        words = " ".join(map(str, step.command))
        assert step.absent or "emulated" in words, step.name
        assert "--device=cuda" not in words or step.absent
    real = list(checks.steps("py", tmp_path, facts, emulated=False, lock="l"))
    assert not any("emulated" in " ".join(map(str, step.command)) for step in real)
    assert {step.name for step in real if step.absent} == {"torch"}


def test_a_signal_ends_the_step_and_what_it_started(tmp_path):
    """A program that uses the limits is terminated; nothing of its command is left."""
    file = tmp_path / "pid"
    child = (
        f"import os, time; open({str(file)!r}, 'w').write(str(os.getpid()) + chr(10))"
    )
    text = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'ci')!r}); import bounded\n"
        "bounded.GRACE = 0.1; bounded.end_with_signals()\n"
        f"bounded.run([sys.executable, '-c', {child + '; time.sleep(60)'!r}], 50)"
    )
    running = subprocess.Popen(program(text))
    try:
        while not (file.exists() and file.read_text().endswith("\n")):
            assert running.poll() is None
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 128 + signal.SIGTERM
    finally:
        running.kill()
    assert not os.path.exists(f"/proc/{file.read_text().strip()}")


HOLDS = """
import sys, time; sys.path.insert(0, {ci!r})
import pathlib, gpu_checks, gpu_runner
folder = pathlib.Path({folder!r})
with gpu_runner.turn(str(folder / "lock"), 0.0) as held:
    record = gpu_checks.Record(folder, "k", emulated=False, kept=(held,))
    text = "import time; open({file!r}, 'w').write('x'); time.sleep(60)"
    step = gpu_checks.Step("one", "t", 50, (sys.executable, "-c", text))
    gpu_checks.run_step(step, record, 60.0)
"""


def test_a_step_that_outlives_the_program_keeps_the_turn_of_the_host(checks, tmp_path):
    file = tmp_path / "started"
    names = {"ci": str(ROOT / "ci"), "folder": str(tmp_path), "file": str(file)}
    running = subprocess.Popen(program(HOLDS.format(**names)))
    while not (file.exists() and file.read_text()):
        assert running.poll() is None
    step = int(Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text())
    running.kill()
    running.wait()
    runner = importlib.import_module("gpu_runner")
    try:
        assert runner._taken(str(tmp_path / "lock")) is None
    finally:
        os.kill(step, signal.SIGKILL)
