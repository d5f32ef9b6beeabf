"""A pattern that misses the segments of a library is told before anything is judged."""

from __future__ import annotations

import mmap
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from command import call
from sharedtensor_conformance.adapter_trial.operation_trial import problems_of_calls
from sharedtensor_conformance.adapter_trial.segment_trial import proposed_pattern
from sharedtensor_conformance.adapters import numpy_copy, stdlib
from sharedtensor_conformance.adapters.numpy_copy import NumpyCopyOperations
from sharedtensor_conformance.adapters.stdlib import StdlibOperations

GOOD = replace(numpy_copy.conformance_adapter, dtypes=("float32",))
PID = os.getpid()
MAKES = """
import sys
with open(sys.argv[1], "x") as file:
    print(flush=True)
    sys.stdin.read()
"""


class MakesFiles(NumpyCopyOperations):
    """It makes a file in an operation, and holds it until the end of the test."""

    def __init__(self, *names: str, operation: str = "encode") -> None:
        self.held = []
        self.operation = operation
        self.paths = [Path("/dev/shm", name) for name in names]

    def make(self, values, shape, dtype):
        return self.done("make", super().make(values, shape, dtype))

    def encode(self, tensor):
        return self.done("encode", super().encode(tensor))

    def share(self, tensor):
        return self.done("share", tensor)

    def done(self, operation, result):
        if operation == self.operation:
            self.held += map(self.hold, self.paths)
        return result

    def hold(self, path):
        return path.open("x")

    def drop(self, held):
        held.close()


class MapsFiles(MakesFiles):
    def hold(self, path):
        with path.open("x+") as file:
            file.truncate(4096)
            return mmap.mmap(file.fileno(), 0)


class LetsOthersMakeFiles(MakesFiles):
    def hold(self, path):
        other = subprocess.Popen(
            [sys.executable, "-c", MAKES, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert other.stdout.readline() == b"\n"
        return other

    def drop(self, held):
        held.communicate()


@pytest.fixture
def making():
    """Make operations of a class; remove in the end what they have made."""
    made = []

    def make(kind, *names, **options):
        made.append(kind(*names, **options))
        return made[-1]

    yield make
    for operations in made:
        for path in operations.paths:
            path.unlink(missing_ok=True)
        for held in operations.held:
            operations.drop(held)


def told(name: str, pattern: str, proposal: str) -> str:
    return (
        f'the library made /dev/shm/{name}, which segment_pattern "{pattern}" does not '
        f"match; set it to a regular expression that matches all names of segments, "
        f'for example r"{proposal}"'
    )


@pytest.mark.parametrize("kind", [MakesFiles, MapsFiles])
@pytest.mark.parametrize("operation", ["make", "encode", "share"])
def test_file_that_the_pattern_misses_is_told_with_a_pattern(making, kind, operation):
    name = f"missed-{PID}-1a2b3c4d"
    adapter = replace(GOOD, claims=GOOD.claims | {"share"})
    operations = making(kind, name, operation=operation)
    assert problems_of_calls(adapter, operations) == [
        told(name, "", "missed-{pid}-[0-9a-f]+")
    ]


def test_wrong_pattern_is_told(making):
    name = f"missed-{PID}-1a2b3c4d"
    adapter = replace(GOOD, segment_pattern=r"mist-{pid}")
    (problem,) = problems_of_calls(adapter, making(MakesFiles, name))
    assert problem == told(name, r"mist-{pid}", "missed-{pid}-[0-9a-f]+")


def test_pattern_with_the_pid_of_no_process_is_told(making):
    no_pid = int(Path("/proc/sys/kernel/pid_max").read_text()) + 1
    name = f"missed-{no_pid}"
    adapter = replace(GOOD, segment_pattern=r"missed-{pid}")
    (problem,) = problems_of_calls(adapter, making(MakesFiles, name))
    assert problem == told(name, r"missed-{pid}", r"missed-\d+")


def test_several_names_are_one_problem_with_a_pattern_for_all(making):
    names = (f"missed-{PID}-1", f"missed-{PID}-2", f"missed-{PID}-1.lock")
    (problem,) = problems_of_calls(GOOD, making(MakesFiles, *names))
    assert problem == told(names[0], "", r"missed-{pid}-\d+|missed-{pid}-\d+\.lock")


def test_file_that_the_pattern_matches_is_no_problem(making):
    adapter = replace(GOOD, segment_pattern=r"missed-{pid}-\d+")
    assert problems_of_calls(adapter, making(MakesFiles, f"missed-{PID}-1")) == []
    plain = replace(stdlib.conformance_adapter, dtypes=("float32",))
    assert problems_of_calls(plain, StdlibOperations()) == []


def test_check_of_an_adapter_tells_it(tmp_path, monkeypatch):
    path = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    (tmp_path / "has_no_pattern.py").write_text(
        "from dataclasses import replace\n"
        "from sharedtensor_conformance.adapters import stdlib\n"
        "stdlib = stdlib.conformance_adapter\n"
        "conformance_adapter = replace(stdlib, segment_pattern='')\n"
    )
    done = call("check-adapter", "has_no_pattern")
    assert done.returncode == 1, done.stderr
    (problem,) = re.findall(r"^problem: (.*)$", done.stdout, re.MULTILINE)
    name = re.search(r"/dev/shm/(stdlib_\d+_0), ", problem)[1]
    assert problem == told(name, "", r"stdlib_{pid}_\d+")


def test_file_of_another_process_is_not_counted(making):
    operations = making(LetsOthersMakeFiles, f"missed-{PID}-1")
    assert problems_of_calls(GOOD, operations) == []
    assert operations.paths[0].exists()


def test_file_that_was_there_before_is_not_counted(making):
    earlier = making(MakesFiles, f"missed-{PID}-1")
    earlier.done("encode", None)
    assert problems_of_calls(GOOD, NumpyCopyOperations()) == []


def test_file_of_another_user_is_not_counted(making, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert problems_of_calls(GOOD, making(MakesFiles, f"missed-{PID}-1")) == []


@pytest.mark.parametrize("name", ["sem.missed-PID", "cuda.shm.0.PID.1"])
def test_file_that_is_no_segment_is_not_counted(making, name):
    operations = making(MapsFiles, name.replace("PID", str(PID)))
    assert problems_of_calls(GOOD, operations) == []


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("psm_1a2b3c4d", "psm_[0-9a-f]+"),
        ("psm_12345678", "psm_[0-9a-f]+"),
        ("torch_PID_1804289383_0", r"torch_{pid}_[0-9a-f]+_\d+"),
        ("minePID", "mine{pid}"),
        ("mine_PID_PID", r"mine_{pid}_\d+"),
        ("mine-0b54c1de-4821-4bf2-8d5a-9a4f6f3c2b10", "mine-[0-9a-f-]{36}"),
        ("tmpab_1x9zq", r"tmp\w{8}"),
        ("arena.Xk39ab7Q", r"arena\.\w+"),
        ("float32_4bf2", r"float\d+_[0-9a-f]+"),
        ("the_only_one", "the_only_one"),
        ('with "quotes" (1)', r"with\ .quotes.\ \(\d+\)"),
    ],
)
def test_pattern_has_in_general_terms_what_is_random_in_a_name(name, pattern):
    own = name.replace("PID", str(PID))  # the ids of cases are the same in each worker
    assert proposed_pattern(own) == pattern
    assert re.fullmatch(pattern.replace("{pid}", str(PID)), own)
