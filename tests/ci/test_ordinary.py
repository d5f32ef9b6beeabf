"""The script that runs the README's commands as other people do."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

CI = Path(__file__).parents[2] / "ci"
sys.path.append(str(CI))

import ordinary  # noqa: E402  (a script of CI)

FACTS = (
    "id -u; ulimit -n; df --output=size -m /dev/shm | tail -1; unshare -U true; echo $?"
)


@pytest.fixture(scope="module")
def clone_of():
    """Return a function that makes one clone for each user."""
    with ordinary.folder_for_all() as folder:
        yield cache(lambda user: ordinary.Clone(folder / f"clone-{user}", user))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("user", [str(ordinary.USER), "1024", None, "0"]),
        ("no-namespaces", [str(ordinary.USER), "1024", None, "1"]),
        ("container", ["0", "1024", "64", "1"]),
        ("root", ["0", None, None, "0"]),
    ],
)
def test_an_environment_is_what_it_says(clone_of, tmp_path, name, expected):
    if refused := ordinary.why_not_as_root():
        pytest.skip(refused)
    if os.geteuid() != 0:
        if ordinary.ENVIRONMENTS[name].as_root:
            pytest.skip("an ordinary user cannot become root")
        expected[0] = str(os.geteuid())
    environment = ordinary.ENVIRONMENTS[name]
    user = os.geteuid() if environment.as_root else int(expected[0])
    output = tmp_path / "output"
    assert clone_of(user).run(environment, FACTS, output).wait() == 0
    found = output.read_text().split("\n")
    lines = [line.strip() for line in found if line and "unshare" not in line]
    for value, wanted in zip(lines, expected, strict=True):
        assert wanted in (None, value)


def test_what_a_command_leaves_behind_is_named_for_that_command_alone(clone_of):
    clone = clone_of(os.geteuid())
    before = ordinary.leftovers(clone)
    others = subprocess.Popen(["sleep", "60"])
    left = subprocess.Popen(["sleep", "60"], env={"HOME": str(clone.folder)})
    folder = clone.folder / "tmp/sts-left"
    folder.mkdir()
    try:
        found = ordinary.left_behind(clone, before, within=0)
        assert {f"{left.pid} sleep 60", str(folder)} <= found
        assert not any(line.startswith(f"{others.pid} ") for line in found)
    finally:
        for process in (left, others):
            process.kill()
            process.wait()
        folder.rmdir()
    assert f"{left.pid} sleep 60" not in ordinary.left_behind(clone, before, within=5)


def test_commands_are_those_of_the_readme():
    installing, running = ordinary.lines_of("main")
    assert installing.endswith('pip install -q -e ".[conformance]"')
    line = ordinary.with_options(running, ordinary.ENVIRONMENTS["one-worker"], ["-x"])
    assert line == ".venv/bin/pytest conformance -n 1 -x"


def test_unknown_environment_is_one_sentence():
    command = [sys.executable, CI / "ordinary.py", "no-such"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(
        "there is no environment no-such; see --help"
    )
