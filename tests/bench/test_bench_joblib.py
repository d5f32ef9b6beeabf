"""The driver for joblib: what it sends arrives mapped, and nothing is left of it."""

import pickle
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("joblib", reason="scikit-learn brings it: the extra `dev`")

DRIVER = "sharedtensor_bench.joblib_memmap"
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
    rows = [f"--rows={row}" for row in ("resend-held-*", "child-start-tensor")]
    strategy = "--strategy=default"
    done = bench(f"--impl={DRIVER}", "--impl=stdlib", strategy, *rows)
    assert done.status == 0, done.err
    measured = [
        (found["row"], found["implementation"])
        for found in done.figures["results"]
        if found["samples"]
    ]
    assert sorted(measured) == [
        (row, name)
        for row in (
            "child-start-tensor",
            "resend-held-one-way",
            "resend-held-round-trip",
        )
        for name in ("joblib-memmap", "stdlib")
    ]


@pytest.fixture
def operations():
    from sharedtensor_bench.joblib_memmap import JoblibOperations

    return JoblibOperations()


def received(operations, array):
    message = pickle.dumps(operations.encode(array))
    return operations.decode(pickle.loads(message))


def test_array_is_dumped_once_and_each_receiver_maps_the_same_file(operations):
    array = operations.make([1.0, 2.0], (2,), "float32")
    one, other = received(operations, array), received(operations, array)
    assert one.filename == other.filename == array.file
    assert isinstance(one, np.memmap)
    assert one.mode == "r"
    assert one.tolist() == [1.0, 2.0]


def test_file_goes_with_the_sender_s_array_and_what_is_mapped_stays(operations):
    array = operations.make([3.0], (1,), "float32")
    there = received(operations, array)
    file = Path(array.file)
    assert file.exists()
    del array
    assert not file.exists()
    assert operations.read(there, (0,)) == 3.0


def test_resource_tracker_removes_the_file_of_a_sender_that_was_killed():
    # The tracker has inherited stderr: what is captured ends when the tracker has.
    done = subprocess.run(
        [sys.executable, "-c", KILLED], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not Path(done.stdout.strip()).exists()
