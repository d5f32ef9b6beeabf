"""The gate script, the action and the workflow, run with stand-ins for what they call.

The stand-ins say whatever the test wants; nothing here says anything about CUDA.
"""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ACTION = ROOT / ".github" / "actions" / "gpu-gate" / "action.yml"
WORKFLOW = ROOT / ".github" / "workflows" / "gpu.yml"
NO_DRIVER = "This runner is not fit for the GPU gate: there is no NVIDIA driver"
HAS_DRIVER = Path("/proc/driver/nvidia/version").exists()

FITNESS = """\
import json, os, pathlib, sys
option, file = sys.argv[1:3]
if option == "--facts":
    pathlib.Path(file).write_text(json.dumps({"extra": "cuda13"}))
    sys.exit(int(os.environ["FIT"]))
sys.exit(int(os.environ["BACK"]))
"""
PYTHON = """\
#!/bin/sh
echo "$*" >> "$CALLS"
case "$*" in
    "-m pytest"*) exit "$SUITE" ;;
    "-m sharedtensor_conformance.cli gate"*) exit "$GATE" ;;
esac
exit 9
"""


@pytest.fixture
def gate(tmp_path):
    """Run the script beside a stand-in for the fitness check, and as an interpreter."""
    folder = tmp_path / "ci"
    folder.mkdir()
    shutil.copy(ROOT / "ci" / "gpu-gate.sh", folder)
    (folder / "gpu_fitness.py").write_text(FITNESS)
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    temporary = tmp_path / "tmp"
    temporary.mkdir()

    def run(*options, fit=0, suite=0, gate=0, back=0):
        environment = os.environ | {
            "FIT": str(fit), "SUITE": str(suite), "GATE": str(gate), "BACK": str(back),
            "CALLS": str(tmp_path / "calls"), "TMPDIR": str(temporary),
        }  # fmt: skip
        script = [folder / "gpu-gate.sh", "--python", python, *options]
        done = subprocess.run(
            script, env=environment, capture_output=True, text=True, timeout=60
        )
        calls = tmp_path / "calls"
        done.calls = calls.read_text().splitlines() if calls.exists() else []
        assert not list(temporary.iterdir())
        return done

    return run


def test_the_gate_is_open_where_all_of_it_says_so(gate):
    done = gate("--impl", "mypkg", "--require", "core,cuda", "--report", "r.jsonl")
    assert done.returncode == 0
    cpu, device, decision = done.calls
    assert "--impl=mypkg --device=cpu --report=r-cpu.jsonl" in cpu
    assert "--impl=mypkg --device=cuda --report=r.jsonl" in device
    assert "-n" in cpu.split()
    assert "-n" not in device.split()
    assert decision.endswith("gate r-cpu.jsonl r.jsonl --require core,cuda")


@pytest.mark.parametrize(
    "found",
    [{"gate": 1}, {"gate": 4}, {"back": 1}, {"back": 2}, {"gate": 1, "back": 1}],
)
def test_whatever_does_not_hold_closes_it(gate, found):
    assert gate(**found).returncode == 1


def test_the_decision_is_that_of_the_reports_and_not_of_the_run(gate):
    assert gate(suite=1).returncode == 0
    done = gate(suite=3, gate=1)
    assert done.returncode == 1
    assert "The run ended early, with status 3." in done.stdout


def test_a_runner_that_is_not_fit_judges_nothing(gate):
    done = gate(fit=2)
    assert done.returncode == 2
    assert not done.calls


def test_an_environment_that_cannot_be_made_is_no_result(tmp_path):
    folder, programs = tmp_path / "ci", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    shutil.copy(ROOT / "ci" / "gpu-gate.sh", folder)
    (folder / "gpu_fitness.py").write_text(FITNESS)
    stand_in = programs / "python3"
    stand_in.write_text(
        f'#!/bin/sh\ntest "$2" != venv || exit 1\nexec {sys.executable} "$@"\n'
    )
    stand_in.chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "FIT": "0", "TMPDIR": str(tmp_path)}
    done = run_script(folder / "gpu-gate.sh", env=environment)
    assert done.returncode == 2
    assert "its environment could not be made" in done.stderr
    assert not list(tmp_path.glob("gpu-gate.*"))


def test_options_of_the_suite_are_passed_to_both_runs(gate):
    done = gate("--suite-option", "--case-limit=9", "--suite-option", "-x")
    assert all(call.endswith("--case-limit=9 -x") for call in done.calls[:2])


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--nope"], "there is no option --nope"), (["--impl"], "--impl needs a value")],
)
def test_wrong_use_ends_with_2_and_a_sentence(gate, options, said):
    done = gate(*options)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("script", ["gpu-gate.sh", "gpu-checks.sh"])
def test_help_tells_the_statuses(script):
    done = run_script("bash", ROOT / "ci" / script, "--help")
    assert done.returncode == 0
    assert "exit status: 0" in done.stdout


def run_script(*command, **options):
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, **options
    )


# Without a driver, the real scripts


@pytest.mark.skipif(HAS_DRIVER, reason="there is an NVIDIA driver")
@pytest.mark.parametrize("script", ["gpu-gate.sh", "gpu-checks.sh"])
def test_without_a_driver_the_runner_is_not_fit(script, tmp_path):
    done = run_script("bash", ROOT / "ci" / script, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(NO_DRIVER)
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def step_of(file):
    """Return the one script that a workflow or an action runs."""
    pattern = r"run: \|\n((?P<indent> +).*\n(?:(?P=indent).*\n)*)"
    ((script, _),) = re.findall(pattern, file.read_text())
    return textwrap.dedent(script)


@pytest.mark.skipif(HAS_DRIVER, reason="there is an NVIDIA driver")
@pytest.mark.parametrize("file", [ACTION, WORKFLOW])
def test_the_step_of_action_and_workflow_reaches_the_gate(file, tmp_path):
    (tmp_path / ".shared-tensor-spec").symlink_to(ROOT)
    inputs = {"IMPL": "x y", "REQUIRE": "core", "INSTALL": ".", "REPORT": "r.jsonl"}
    environment = os.environ | inputs | {"GITHUB_ACTION_PATH": str(ACTION.parent)}
    done = run_script("bash", "-e", "-c", step_of(file), cwd=tmp_path, env=environment)
    assert done.returncode == 2
    assert done.stderr.startswith(NO_DRIVER)


@pytest.mark.parametrize("file", [ACTION, WORKFLOW])
def test_every_input_travels_by_the_environment(file):
    assert "${{" not in step_of(file)
    text = file.read_text()
    used = set(re.findall(r'"\$([A-Z]+)"', step_of(file)))
    given = set(re.findall(r"^ +([A-Z]+): \$\{\{ inputs\.", text, re.MULTILINE))
    assert used == given


# The scripts for a device, on the simulated one


def test_the_rules_are_checked_on_the_simulated_device(tmp_path):
    out = tmp_path / "rules.json"
    script = ROOT / "ci" / "gpu_rules.py"
    done = run_script(sys.executable, script, "--device", "sim:0", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"device": "sim:0"' in out.read_text()
    assert done.stdout.count(": kept") >= 16


def test_the_cost_on_the_simulated_device_says_so(tmp_path):
    script = ROOT / "ci" / "send_cost.py"
    done = run_script(sys.executable, script, "--device", "sim:0", "--rounds", "3")
    assert done.returncode == 0, done.stderr
    assert '"simulated": true' in done.stdout


@pytest.mark.skipif(HAS_DRIVER, reason="there is an NVIDIA driver")
@pytest.mark.parametrize("script", ["gpu_rules.py", "send_cost.py"])
def test_without_a_device_they_end_with_2(script):
    done = run_script(sys.executable, ROOT / "ci" / script)
    assert done.returncode == 2
    assert "There is no cuda:0." in done.stderr
    assert "Traceback" not in done.stderr
