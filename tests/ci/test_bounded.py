"""The script that runs a command with a limit and leaves nothing of it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sharedtensor_conformance.harness.kernel.private_shm import Way, best_way

ROOT = Path(__file__).parents[2]

LEAKS = """
import os, subprocess, sys, tempfile
from subprocess import DEVNULL
open("/dev/shm/sts-test-of-bounded", "w").close()
handle, file = tempfile.mkstemp()
wait = "import signal; signal.pause()"
child = subprocess.Popen(
    [sys.executable, "-c", wait], start_new_session=True, stdout=DEVNULL, stderr=DEVNULL
)
print(file, child.pid)
"""


def bounded(*arguments):
    """Run the script; return what came of it."""
    command = [sys.executable, str(ROOT / "ci" / "bounded.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def program(text, limit=30):
    """Run a program below the script."""
    return bounded(str(limit), sys.executable, "-c", text)


def test_a_process_and_a_temporary_file_do_not_outlive_the_command():
    done = program(LEAKS)
    file, child = done.stdout.split()
    assert done.returncode == 0
    assert not os.path.exists(file)
    assert not os.path.exists(os.path.dirname(file))
    assert not os.path.exists(f"/proc/{child}")


@pytest.mark.skipif(best_way() is Way.NONE, reason="nothing may be mounted here")
def test_a_file_in_dev_shm_does_not_outlive_the_command():
    assert program(LEAKS).returncode == 0
    assert not os.path.exists("/dev/shm/sts-test-of-bounded")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("raise SystemExit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)", 128 + signal.SIGKILL),
        ("import signal; signal.pause()", 124),
    ],
)
def test_status_says_how_the_command_ended(text, status):
    assert program(text, limit=3).returncode == status


def test_streams_are_those_of_the_command():
    done = program("import sys; print('out'); print('error', file=sys.stderr)")
    assert (done.stdout, done.stderr) == ("out\n", "error\n")


@pytest.mark.parametrize(
    ("arguments", "said", "status"),
    [
        (("5", "/no/such/program"), "/no/such/program: No such file", 127),
        (("soon", "true"), "invalid float value: 'soon'", 2),
        ((), "arguments are required: limit, command", 2),
    ],
)
def test_wrong_use_is_told_in_a_sentence(arguments, said, status):
    done = bounded(*arguments)
    assert (done.returncode, said in done.stderr) == (status, True)
    assert "Traceback" not in done.stderr
