"""The driver for joblib: what it sends arrives mapped, and nothing is left of it."""

import pickle
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("joblib", reason="scikit-learn brings it: the extra `dev`")

ROOT = Path(__file__).parents[2]
DRIVER = "bench.joblib_memmap"
KILLED = f"""
import os, signal
from {DRIVER} import JoblibOperations
operations = JoblibOperations()
array = operations.make([1.0], (1,), "float32")
operations.encode(array)
assert os.path.exists(array.file)
print(array.file, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_joblib_is_measured_beside_the_standard_library(bench):
    rows = [f"--rows={row}" for row in ("resend-held-one-way", "child-start-tensor")]
    done = bench(f"--impl={DRIVER}", "--impl=stdlib", *rows)
    assert done.status == 0, done.err
    assert all(len(one["samples"]) == 1 for one in done.results)
    names = [one["implementation"] for one in done.results]
    assert names == ["joblib-memmap", "stdlib"] * 2


def test_array_is_dumped_once_and_its_file_goes_with_the_sender_s_array():
    from bench.joblib_memmap import JoblibOperations

    operations = JoblibOperations()
    array = operations.make([1.0, 2.0], (2,), "float32")
    messages = [pickle.dumps(operations.encode(array)) for _ in range(2)]
    one, other = [operations.decode(pickle.loads(each)) for each in messages]
    assert one.filename == other.filename == array.file
    assert isinstance(one, np.memmap)
    assert one.mode == "r"
    file = Path(array.file)
    assert file.exists()
    del array
    assert not file.exists()
    assert one.tolist() == [1.0, 2.0]


def test_resource_tracker_removes_the_file_of_a_sender_that_was_killed():
    # The tracker has inherited stderr: what is captured ends when the tracker has.
    done = subprocess.run(
        [sys.executable, "-c", KILLED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not Path(done.stdout.strip()).exists()
