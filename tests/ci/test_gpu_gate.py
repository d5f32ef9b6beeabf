"""The gate script, the action and the workflow, run with stand-ins for what they call.

The stand-ins say whatever the test wants; nothing here says anything about CUDA.
"""

import fcntl
import fnmatch
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
ACTION = ROOT / ".github" / "actions" / "gpu-gate" / "action.yml"
WORKFLOW = ROOT / ".github" / "workflows" / "gpu.yml"
EXAMPLE = ROOT / "examples" / "ci" / "github-gpu.yml"
GUIDE = ROOT / "docs" / "guides" / "gpu-gate.md"
NOT_FIT = "This runner is not fit for the GPU gate:"
NO_DRIVER = f"{NOT_FIT} there is no NVIDIA driver"
PROGRAMS = (
    ("bash", ROOT / "ci" / "gpu-gate.sh"),
    (sys.executable, ROOT / "ci" / "gpu_checks.py"),
)
HAS_DRIVER = Path("/proc/driver/nvidia/version").exists()

FITNESS = """\
import json, os, pathlib, sys
from real_fitness import UNFIT, Parser, Unfit
def main(option, file):
    if option != "--facts":
        return int(os.environ["BACK"])
    gpus = [{"name": "A GPU"}]
    pathlib.Path(file).write_text(json.dumps({"extra": "cuda13", "devices": gpus}))
    print("GPU 0: A GPU")
    return int(os.environ["FIT"])
if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
"""
PYTHON = """\
#!/bin/sh
echo "$*" >> "$CALLS"
case "$*" in
    */gpu_seen.py*) echo "it cannot see the device"; exit "$SEEN" ;;
    "-m pytest"*"$SLEEPS"*) sleep 60 ;;
    "-m pytest"*)
        for word; do case $word in --report=*) : > "${word#--report=}" ;; esac; done
        exit "$SUITE" ;;
    "-m sharedtensor_conformance.cli gate"*) echo "it said so"; exit "$GATE" ;;
    "-m sharedtensor_conformance.cli report"*) echo "### $4"; exit 0 ;;
esac
exit 9
"""


def programs_in(tmp_path):
    """Return a folder with the programs and a stand-in for the fitness check."""
    folder = tmp_path / "ci"
    folder.mkdir()
    (tmp_path / "conformance").symlink_to(ROOT / "conformance")
    names = ("gpu-gate.sh", "gpu_gate.py", "gpu_seen.py", "bounded.py")
    for name in names:
        shutil.copy(ROOT / "ci" / name, folder)
    shutil.copy(ROOT / "ci" / "gpu_fitness.py", folder / "real_fitness.py")
    (folder / "gpu_fitness.py").write_text(FITNESS)
    return folder


@pytest.fixture
def gate(tmp_path):
    """Run the script beside a stand-in for the fitness check, and as an interpreter."""
    folder = programs_in(tmp_path)
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    temporary = tmp_path / "tmp"
    temporary.mkdir()

    def run(*options, fit=0, seen=0, suite=0, gate=0, back=0, sleeps="never"):
        environment = os.environ | {
            "FIT": str(fit), "SUITE": str(suite), "GATE": str(gate), "BACK": str(back),
            "CALLS": str(tmp_path / "calls"), "TMPDIR": str(temporary),
            "SEEN": str(seen), "SLEEPS": sleeps,
        }  # fmt: skip
        environment.pop("GITHUB_STEP_SUMMARY", None)
        lock = ["--lock", tmp_path / "lock"]
        script = [folder / "gpu-gate.sh", "--python", python, *lock, *options]
        done = subprocess.run(
            script, env=environment, capture_output=True, text=True, timeout=60,
            cwd=tmp_path,
        )  # fmt: skip
        calls = tmp_path / "calls"
        done.calls = calls.read_text().splitlines() if calls.exists() else []
        assert not list(temporary.iterdir())
        return done

    return run


def test_the_gate_is_open_where_all_of_it_says_so(gate):
    options = ("--impl", "mypkg", "--require", "core,cuda", "--report", "r.jsonl")
    suite = ("--suite-option", "--case-limit=9", "--suite-option", "-x")
    done = gate(*options, *suite, "--workers", "3")
    assert done.returncode == 0
    seen, cpu, device, decision = done.calls
    assert seen.endswith("gpu_seen.py mypkg cuda")
    assert "--impl=mypkg --device=cpu --report=r-cpu.jsonl -n 3 --case-limit" in cpu
    assert "--impl=mypkg --device=cuda --report=r.jsonl --case-limit" in device
    assert all(call.endswith("--case-limit=9 -x") for call in (cpu, device))
    assert decision.endswith("gate r-cpu.jsonl r.jsonl --require core,cuda")
    assert "GPU 0: A GPU" in done.stdout
    assert "Judged on one GPU" in done.stdout


@pytest.mark.parametrize(
    "found",
    [{"gate": 4}, {"back": 2}, {"gate": 1, "back": 1}],
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
    folder, modules = programs_in(tmp_path), tmp_path / "modules"
    modules.mkdir()
    (modules / "venv.py").write_text("raise SystemExit(1)")
    own = {"PYTHONPATH": str(modules), "FIT": "0", "TMPDIR": str(tmp_path)}
    environment = os.environ | own
    lock = ("--lock", tmp_path / "lock")
    done = run_script(folder / "gpu-gate.sh", *lock, env=environment)
    assert done.returncode == 2
    assert "its environment could not be made" in done.stderr
    assert not list(tmp_path.glob("gpu-gate.*"))


def test_a_build_that_cannot_see_the_device_is_not_fit_and_not_broken(gate):
    done = gate("--impl", "torch-cuda", seen=2)
    assert done.returncode == 2
    assert done.stderr == f"{NOT_FIT} it cannot see the device\n"
    assert [call for call in done.calls if "-m pytest" in call] == []


def test_workers_are_capped_on_a_large_host(program, monkeypatch):
    for processors, workers in ((2, 2), (64, 8)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=processors: range(n))
        assert program.build_parser().parse_args([]).workers == workers


def test_the_gate_says_how_many_devices_it_judged(program):
    assert "on one GPU" in program.judged_on([{}], emulated=False)
    assert "on two of 4 visible" in program.judged_on([{}] * 4, emulated=False)


def test_a_run_that_hangs_is_ended_and_the_gate_decides(gate):
    done = gate("--limit", "1", sleeps="--device=cuda", gate=1)
    assert done.returncode == 1
    assert "The run was ended after its limit of 1 s." in done.stdout
    assert "gate gpu-report-cpu.jsonl gpu-report.jsonl" in done.calls[-1]


def test_the_summary_has_the_decision_and_both_reports(gate, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n")
    gate("--report", "r.jsonl", "--summary", page, gate=1)
    first, decision, cpu, device = page.read_text().split("\n\n", 3)
    assert first == "before\n## GPU gate"
    assert decision == "```text\nit said so\n```"
    assert (cpu, device) == ("### r-cpu.jsonl", "### r.jsonl\n")


def test_a_report_of_a_run_before_is_not_judged(gate, tmp_path):
    report = tmp_path / "r.jsonl"
    report.write_text("that of another run")
    gate("--report", report.name, "--limit", "0.3", gate=1, sleeps="sharedtensor")
    assert not report.exists()


def test_a_gate_waits_for_another_one_and_says_so_when_it_gives_up(gate, tmp_path):
    with open(tmp_path / "lock", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        done = gate("--wait", "0.3")
        assert done.returncode == 2
        assert not done.calls
        assert "waiting for up to 0.3 s" in done.stdout
        assert "has had" in done.stderr
        assert done.stderr.count("\n") == 1
    assert gate("--wait", "0.3").returncode == 0


def test_a_lock_that_is_removed_while_it_is_taken_is_not_taken(
    program, tmp_path, monkeypatch
):
    file, opened = tmp_path / "lock", program._opened

    def open_and_lose(name):
        found = opened(name)
        file.unlink()
        file.touch()
        return found

    monkeypatch.setattr(program, "_opened", open_and_lose)
    assert program._taken(str(file)) is None


def test_a_lock_that_was_removed_can_be_taken_again(program, tmp_path):
    file = tmp_path / "lock"
    with program.turn(str(file), 0.0):
        file.unlink()
        with program.turn(str(file), 0.0):
            assert program._taken(str(file)) is None


@pytest.mark.parametrize("name", ["missing/lock", "link"])
def test_a_lock_that_cannot_be_opened_is_told(gate, tmp_path, name):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    done = gate("--lock", tmp_path / name)
    assert done.returncode == 2
    assert "cannot be opened" in done.stderr
    assert done.stderr.count("\n") == 1


# Wheels from a folder


@pytest.fixture
def program(monkeypatch):
    """The program behind the script, for what needs no process of its own."""
    monkeypatch.syspath_prepend(str(ROOT / "ci"))
    return importlib.import_module("gpu_gate")


def why_unfit(program, folder, wheels):
    options = SimpleNamespace(wheels=wheels, install=[])
    with pytest.raises(program.Unfit) as refused:
        program.make_environment(folder, "cuda13", options)
    return str(refused.value)


def test_a_folder_without_wheels_is_told(program, tmp_path):
    said = why_unfit(program, tmp_path / "environment", tmp_path)
    assert f"{tmp_path} has no wheels; fill it" in said
    assert "pip wheel --wheel-dir FOLDER hatchling '.[conformance,cuda13]'" in said


def test_a_wheel_that_is_missing_is_named(program, tmp_path, monkeypatch):
    """Pip says so in the environment of the tests as well, if it is there."""
    called = program._called

    def call_here(command):
        if "venv" not in command:
            called([sys.executable, *command[1:], "--dry-run"])

    if importlib.util.find_spec("pip"):
        monkeypatch.setattr(program, "_called", call_here)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "other-1-py3-none-any.whl").touch()
    said = why_unfit(program, tmp_path / "environment", wheels)
    assert f"{wheels} has no wheel of hatchling" in said
    assert f"for Python {platform.python_version()}" in said


# What can see a device


@pytest.mark.skipif(HAS_DRIVER, reason="there is an NVIDIA driver")
@pytest.mark.parametrize(
    ("name", "device", "status"),
    [
        ("reference", "cuda", 2),
        ("reference", "simulated", 0),
        ("stdlib", "cuda", 0),  # it has none, which the decision tells
        ("no_such_adapter.at_all", "cuda", 0),  # the suite tells it
    ],
)
def test_an_implementation_is_asked_whether_it_sees_the_device(name, device, status):
    done = run_script(sys.executable, ROOT / "ci" / "gpu_seen.py", name, device)
    assert done.returncode == status, done.stderr
    assert bool(done.stdout.strip()) == bool(status)
    assert done.stdout.startswith("reference cannot see" if status else "\n")


def test_an_environment_without_the_suite_is_told():
    bare = (sys.executable, "-I", "-S", ROOT / "ci" / "gpu_seen.py")
    done = run_script(*bare, "reference", "cuda")
    assert done.returncode == 2
    assert "has no sharedtensor_conformance" in done.stdout


# Limits


TREE = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"],
                         start_new_session=True)
open(sys.argv[1], "w").write(str(child.pid))
{last}
"""
BOUNDED = """
import sys; sys.path.insert(0, {ci!r})
import bounded
bounded.GRACE = 0.1
print(bounded.run([sys.executable, "-c", sys.argv[1], sys.argv[2]], 2.0).status)
"""


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ("sys.exit(3)", "3"),
        ("import signal; signal.signal(2, signal.SIG_IGN); time.sleep(60)", "None"),
    ],
)
def test_nothing_is_left_of_a_command(tmp_path, last, said):
    file = tmp_path / "pid"
    program = BOUNDED.format(ci=str(ROOT / "ci"))
    tree = TREE.format(last=last)
    done = run_script(sys.executable, "-c", program, tree, str(file))
    assert done.stdout.strip() == said, done.stderr
    assert not Path("/proc", file.read_text()).exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--nope"], "unrecognized arguments: --nope"),
        (["--impl"], "--impl: expected one argument"),
        (["--workers", "0"], "--workers needs a number above 0"),
        (["--suite-option"], "--suite-option: expected one argument"),
    ],
)
def test_wrong_use_ends_with_2_and_a_sentence(
    program, options, said, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "argv", ["gpu-gate.sh", *options])
    with pytest.raises(SystemExit) as ended:
        program.main()
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert said in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("command", PROGRAMS)
def test_help_tells_the_statuses(command):
    done = run_script(*command, "--help")
    assert done.returncode == 0
    assert "exit status: 0" in done.stdout


def run_script(*command, **options):
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, **options
    )


# Without a driver, the real scripts


@pytest.mark.skipif(HAS_DRIVER, reason="there is an NVIDIA driver")
@pytest.mark.parametrize("command", PROGRAMS)
def test_without_a_driver_the_runner_is_not_fit(command, tmp_path):
    lock = tmp_path.with_name("lock")
    done = run_script(*command, "--lock", lock, cwd=tmp_path)
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
    lock = str(tmp_path / "lock")
    settings = {"PYTHON": "", "WHEELS": "w x", "LIMIT": "9", "LOCK": lock}
    place = {"GITHUB_ACTION_PATH": str(ACTION.parent), "MINUTES": "60"}
    place["GITHUB_OUTPUT"] = str(tmp_path / "output")
    environment = os.environ | inputs | settings | place
    done = run_script("bash", "-e", "-c", step_of(file), cwd=tmp_path, env=environment)
    assert done.returncode == 2
    assert done.stderr.startswith(NO_DRIVER)


@pytest.mark.parametrize("file", [ACTION, WORKFLOW])
def test_every_input_travels_by_the_environment(file):
    assert "${{" not in step_of(file)
    text = file.read_text()
    used = set(re.findall(r'"\$([A-Z]+)"|(MINUTES)', step_of(file)))
    used = {quoted or counted for quoted, counted in used}
    given = set(re.findall(r"^ +([A-Z]+): \$\{\{ inputs\.", text, re.MULTILINE))
    assert used == given


def inputs_of(file):
    """Return what a workflow or an action says of each of its inputs."""
    pattern = r"^(?P<indent> *)inputs:\n((?:(?P=indent)  .*\n)+)"
    ((indent, block),) = re.findall(pattern, file.read_text(), re.MULTILINE)
    each = rf"^{indent}  ([a-z-]+):\n((?:{indent}    .*\n)+)"
    return dict(re.findall(each, block, re.MULTILINE))


@pytest.mark.parametrize("file", [ACTION, WORKFLOW])
def test_every_input_is_described_and_used_and_can_be_left_out_or_is_required(file):
    text = file.read_text()
    used = set(re.findall(r"inputs\.([a-z-]+)", text))
    found = inputs_of(file)
    assert used == set(found)
    for name, said in found.items():
        assert "description: " in said, name
        assert ("default: " in said) != ("required: true" in said), name


@pytest.mark.parametrize("file", [EXAMPLE, GUIDE])
def test_examples_give_inputs_that_there_are(file):
    pattern = r"uses: OWNER/\S+/(\S+)@\S+\n +with:\n((?: +[a-z-]+: .*\n)+)"
    found = re.findall(pattern, file.read_text())
    assert found
    for called, block in found:
        known = inputs_of(WORKFLOW if called == WORKFLOW.name else ACTION)
        given = set(re.findall(r"^ +([a-z-]+):", block, re.MULTILINE))
        required = {name for name, said in known.items() if "required: true" in said}
        assert required <= given <= set(known)


def test_the_reports_that_the_action_keeps_are_those_of_the_gate(tmp_path):
    (told,) = re.findall(r'echo "reports=.*', step_of(ACTION))
    for name in ("r.jsonl", "a folder/r.jsonl"):
        output = tmp_path / "output"
        own = {"REPORT": name, "GITHUB_OUTPUT": str(output)}
        run_script("bash", "-e", "-c", told, env=os.environ | own)
        kept = output.read_text().strip().removeprefix("reports=")
        output.unlink()
        gate = [name, name.replace(".jsonl", "-cpu.jsonl")]
        assert all(fnmatch.fnmatchcase(one, kept) for one in gate)
        assert not fnmatch.fnmatchcase("other.jsonl", kept)


# The measurement of a send, on the simulated device


def test_the_cost_on_the_simulated_device_says_so(tmp_path):
    script = ROOT / "ci" / "send_cost.py"
    done = run_script(sys.executable, script, "--device", "sim:0", "--rounds", "3")
    assert done.returncode == 0, done.stderr
    assert '"simulated": true' in done.stdout


@pytest.mark.skipif(HAS_DRIVER, reason="there is an NVIDIA driver")
def test_without_a_device_the_measurement_ends_with_2():
    done = run_script(sys.executable, ROOT / "ci" / "send_cost.py")
    assert done.returncode == 2
    assert "There is no cuda:0." in done.stderr
    assert "Traceback" not in done.stderr
