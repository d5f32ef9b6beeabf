"""A process that is stopped does nothing more, in none of its threads."""

import os
import signal
import subprocess
import sys

import pytest
from sharedtensor_conformance.harness.kernel import process_tree

THREADS = 20
PROGRAM = f"""
import hashlib, threading

def work():
    while True:
        hashlib.sha256(bytes(1 << 20))

for _ in range({THREADS}):
    threading.Thread(target=work, daemon=True).start()
print("ready", flush=True)
work()
"""


@pytest.fixture
def busy():
    """A process in which many threads are busy, and which ends with the test."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def states(pid):
    tasks = os.listdir(f"/proc/{pid}/task")
    return {process_tree.stat(f"{pid}/task/{task}")[0] for task in tasks}


def test_all_threads_have_stopped(busy):
    for _ in range(50):
        process_tree.stop(busy.pid)
        assert states(busy.pid) == {"T"}
        os.kill(busy.pid, signal.SIGCONT)


def test_process_that_does_not_stop_is_told(busy, monkeypatch):
    monkeypatch.setattr(process_tree, "STOP_TIMEOUT", 0.05)
    monkeypatch.setattr(signal, "SIGSTOP", 0)  # no signal at all
    with pytest.raises(TimeoutError, match=f"process {busy.pid} goes on"):
        process_tree.stop(busy.pid)


def test_process_that_is_not_there_cannot_be_stopped(busy):
    busy.kill()
    busy.wait()
    with pytest.raises(ProcessLookupError):
        process_tree.stop(busy.pid)
