"""The checks for a first device: bounded, and saved step by step."""

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


def program(text):
    return (sys.executable, "-c", text)


@pytest.fixture
def summary(tmp_path):
    return gpu_checks.Summary(tmp_path, emulated=False, keep=False)


@pytest.fixture
def run(summary, tmp_path, monkeypatch):
    """Run a step; return whether it held, and its row in the summary.

    It runs where no other process is: what is below pytest would be taken for its.
    """

    def run_bounded(command, limit, pass_fds, **streams):
        try:
            status = subprocess.run(command, timeout=limit, **streams).returncode
        except subprocess.TimeoutExpired:
            status = None
        return SimpleNamespace(status=status, seconds=0.1)

    monkeypatch.setattr(gpu_checks.bounded, "run", run_bounded)

    def run_step(text, limit=30.0, left=600.0):
        step = gpu_checks.Step("one", "what it shows", limit, program(text))
        held = gpu_checks.run_step(step, summary, left, 0)
        (row,) = json.loads((tmp_path / "summary.json").read_text())["steps"]
        return held, row

    return run_step


SLEEPS = "import time; time.sleep(60)"


@pytest.mark.parametrize(
    ("text", "limit", "status"),
    [
        ("print('all of it held')", 30.0, "held"),
        ("import sys; sys.exit(1)", 30.0, "broken"),
        ("import os; os.abort()", 30.0, "crashed"),
        (SLEEPS, 1.0, "hung"),
    ],
)
def test_a_step_ends_with_a_status_which_is_saved(run, text, limit, status):
    held, row = run(text, limit=limit)
    assert (held, row["status"]) == (status == "held", status)
    assert row["said"] == ("all of it held" if held else "")


def test_a_step_without_time_is_not_run_and_not_green(run):
    held, row = run("raise SystemExit(3)", left=0.5)
    assert (held, row["status"]) == (False, "not run")


def test_a_step_that_the_end_of_all_steps_cuts_off_did_not_hang(run):
    held, row = run(SLEEPS, limit=30.0, left=1.5)
    assert (held, row["status"]) == (False, "not run")
    assert "--only" in row["said"]


@pytest.mark.parametrize("text", ["{", "[]", '{"emulated": false}'])
def test_file_that_is_no_summary_is_refused_in_a_sentence(tmp_path, text):
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(gpu_checks.Unfit, match="is no summary; give another --out"):
        gpu_checks.Summary(tmp_path, emulated=False, keep=True)


def test_a_step_is_saved_as_not_run_before_it_ends(run, tmp_path):
    text = f"import json; print(json.load(open({str(tmp_path / 'summary.json')!r})))"
    assert "'status': 'not run'" in run(text)[1]["said"]


def test_earlier_results_are_kept_if_that_is_asked(run, tmp_path):
    run("pass")
    kept = gpu_checks.Summary(tmp_path, emulated=False, keep=True)
    assert kept.steps["one"]["status"] == "held"
    assert not gpu_checks.Summary(tmp_path, emulated=False, keep=False).steps


def test_results_of_the_emulated_runtime_and_of_a_device_are_not_mixed(run, tmp_path):
    run("pass")
    with pytest.raises(gpu_checks.Unfit, match="has results of the device"):
        gpu_checks.Summary(tmp_path, emulated=True, keep=True)


def test_every_clause_of_the_chapter_is_in_one_group():
    text = (ROOT / "spec" / "cuda.md").read_text()
    known = {line.split()[-1] for line in text.splitlines() if "{clause} CUDA-" in line}
    grouped = [n for numbers in gpu_checks.GROUPS.values() for n in numbers.split()]
    assert sorted(f"CUDA-{number}" for number in grouped) == sorted(known)


def words_of(**how):
    every = gpu_checks.steps("py", Path("out"), "lock", **how)
    return {step.name: " ".join(map(str, step.command)) for step in every}


def test_emulated_steps_say_so_and_those_of_a_device_do_not():
    emulated = words_of(emulated=True, torch=True)
    assert all("emulated" in words for words in emulated.values())
    real = words_of(emulated=False, torch=True)
    assert not any("emulated" in words for words in real.values())
    assert set(real) - set(emulated) == {"torch"}
    assert "torch" not in words_of(emulated=False, torch=False)


@pytest.fixture
def check(monkeypatch, tmp_path):
    """Run chosen checks of which some break; return the result and what was run."""
    examined = {"extra": "cuda13"}
    monkeypatch.setattr(gpu_checks, "examined", lambda file, emulated: dict(examined))
    monkeypatch.setattr(gpu_checks, "refuse_unseen", lambda *ignored: None)
    versions = {"libraries": {"torch": "2"}}
    monkeypatch.setattr(gpu_checks, "add_versions", lambda *ignored: versions)

    def run_checks(*only, broken=""):
        ran = []

        def run_step(step, *ignored):
            ran.append(step.name)
            return step.name != broken

        monkeypatch.setattr(gpu_checks, "run_step", run_step)
        given = ["--python=py", *(f"--only={name}" for name in only)]
        options = gpu_checks.build_parser().parse_args(given)
        return gpu_checks.check(options, tmp_path, 0), ran

    return run_checks


def test_a_step_that_does_not_hold_stops_no_other(check):
    held, ran = check(broken="rules")
    assert not held
    assert (ran[0], ran[-1]) == ("rules", "memory")
    assert check() == (True, ran)


def test_only_the_steps_that_are_asked_for_are_run(check):
    assert check("torch", "smoke") == (True, ["smoke", "torch"])
    with pytest.raises(gpu_checks.Unfit, match="there is no step one"):
        check("one")


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
