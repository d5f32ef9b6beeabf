"""What makes a runner unfit for the GPU gate, on a stand-in for the driver's library.

The stand-in is no device: it answers as each test wants, and says nothing about CUDA.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPT = Path(__file__).parents[2] / "ci" / "gpu_fitness.py"
spec = importlib.util.spec_from_file_location("gpu_fitness", SCRIPT)
fitness = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fitness)

MIB = 1 << 20
ATTRIBUTES = {"mode": 20, "unified": 41, "events": 125}


class Library:
    """Answers for the driver; `failures` has the status that a function returns."""

    def __init__(self, **answers):
        self.answers = {
            "version": 13000, "count": 2, "title": b"A GPU", "free": 900 * MIB,
            "mode": 0, "unified": 1, "events": 1,
        } | answers  # fmt: skip
        self.failures, self.freed = {}, []

    def __getattr__(self, name):
        return lambda *given: self.failures.get(name) or self.answer(name, *given)

    def answer(self, name, *given):
        match name:
            case "cuDriverGetVersion":
                given[0]._obj.value = self.answers["version"]
            case "cuDeviceGetCount":
                given[0]._obj.value = self.answers["count"]
            case "cuDeviceGet":
                given[0]._obj.value = given[1]
            case "cuDeviceGetAttribute":
                (asked,) = (k for k, v in ATTRIBUTES.items() if v == given[1])
                given[0]._obj.value = self.answers[asked]
            case "cuDeviceGetName":
                given[0].value = self.answers["title"]
            case "cuMemGetInfo_v2":
                given[0]._obj.value = self.answers["free"]
                given[1]._obj.value = 1000 * MIB
            case "cuMemFree_v2":
                self.freed.append(given[0].value)
            case "cuGetErrorName":
                given[1]._obj.value = b"CUDA_ERROR_OF_THE_TEST"
        return 0


def test_the_emulated_library_is_no_driver(monkeypatch):
    emulated = SimpleNamespace(sharedtensor_emulated_cuda=1, cuInit=lambda flags: 0)
    monkeypatch.setattr(fitness.ctypes, "CDLL", lambda name: emulated)
    with pytest.raises(fitness.Unfit, match="never counts as CUDA"):
        fitness.Cuda.load()


@pytest.fixture
def library(monkeypatch):
    """A driver with two GPUs, which a second process can open as well."""
    opened = []

    def run(command, **options):
        opened.append(command[-1].partition(":")[0])
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(fitness.subprocess, "run", run)
    monkeypatch.setattr(fitness, "SHARED_MEMORY", 0)  # a container may have little
    found = Library()
    found.opened = opened
    return found


def status_of(library, *options):
    return fitness.main([*options], lambda: fitness.Cuda(library))


def test_a_machine_is_fit_where_every_check_holds(library, capsys, tmp_path):
    facts = tmp_path / "facts.json"
    assert status_of(library, "--facts", str(facts)) == 0
    assert library.opened == ["0", "1"]
    assert len(library.freed) == 2
    said = capsys.readouterr().out
    assert "GPU 1: A GPU, 900/1000 MiB free" in said
    assert said.endswith("Two processes can share device memory.\n")
    assert json.loads(facts.read_text())["extra"] == "cuda13"


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"version": 11080}, "the driver is for CUDA 11.8 and CuPy needs 12"),
        ({"count": 0}, "shows this process no GPU"),
        ({"mode": 3}, "lets no two processes use it"),
        ({"mode": 2}, "lets no two processes use it"),
        ({"unified": 0}, "has no unified addressing"),
        ({"events": 0}, "has no events between processes"),
        ({"free": 255 * MIB}, "has 255 MiB free and 256 are needed"),
    ],
)
def test_an_unfit_device_is_told_in_one_sentence(library, capsys, answers, said):
    library.answers.update(answers)
    assert status_of(library) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.startswith("This runner is not fit for the GPU gate: ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    "function",
    ["cuInit", "cuDevicePrimaryCtxRetain", "cuMemAlloc_v2", "cuIpcGetMemHandle"],
)
def test_a_call_that_fails_is_told_by_its_error(library, capsys, function):
    library.failures[function] = 801
    assert status_of(library) == 2
    assert "CUDA_ERROR_OF_THE_TEST" in capsys.readouterr().err


def test_what_was_allocated_is_freed_when_sharing_fails(library):
    library.failures["cuIpcGetMemHandle"] = 801
    assert status_of(library) == 2
    assert len(library.freed) == 1


@pytest.mark.parametrize(
    ("title", "hint"), [(b"A GPU", "container or sandbox"), (b"A MIG 1g", "within one")]
)
def test_sharing_that_is_not_permitted_is_told(
    library, capsys, monkeypatch, title, hint
):
    library.answers["title"] = title
    refused = SimpleNamespace(returncode=2, stderr="cuIpcOpenMemHandle_v2 failed.\n")
    monkeypatch.setattr(fitness.subprocess, "run", lambda *a, **k: refused)
    assert status_of(library) == 2
    errors = capsys.readouterr().err
    assert "a second process cannot open device memory on GPU 0" in errors
    assert hint in errors
    assert errors.count("\n") == 1


def test_a_second_process_that_hangs_is_told(library, capsys, monkeypatch):
    def run(command, timeout, **options):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(fitness.subprocess, "run", run)
    assert status_of(library) == 2
    assert "hangs for 60 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("version", "extra"), [(12000, "cuda12"), (12090, "cuda12"), (13010, "cuda13")]
)
def test_the_build_of_cupy_is_that_of_the_driver(version, extra):
    assert fitness.cupy_extra(version) == extra


@pytest.mark.parametrize(("missing", "status"), [(0, 0), (8, 0), (9, 1), (880, 1)])
def test_memory_that_is_not_back_is_told(
    library, capsys, tmp_path, monkeypatch, missing, status
):
    monkeypatch.setattr(fitness, "GRACE", 0.0)
    facts = tmp_path / "facts.json"
    status_of(library, "--facts", str(facts))
    library.answers["free"] -= missing * MIB
    assert status_of(library, "--compare", str(facts)) == status
    said = capsys.readouterr().out
    assert (f"GPU 0 has {missing * MIB} bytes less free" in said) == bool(status)


def test_limits_that_are_too_low_are_told():
    with pytest.raises(fitness.Unfit, match="open files is 256 and 1024 are needed"):
        fitness.check_limits(lambda what: (256, 256))
    endless = fitness.resource.RLIM_INFINITY
    assert "any" in fitness.check_limits(lambda what: (endless, endless))


def test_shared_memory_that_cannot_be_used_is_told(tmp_path, monkeypatch):
    with pytest.raises(fitness.Unfit, match="cannot be written"):
        fitness.check_shared_memory(str(tmp_path / "missing"))
    full = SimpleNamespace(f_bavail=63, f_frsize=MIB)
    monkeypatch.setattr(fitness.os, "statvfs", lambda folder: full)
    with pytest.raises(fitness.Unfit, match="has 63 MiB free and needs 64"):
        fitness.check_shared_memory(str(tmp_path))


def test_wrong_use_ends_with_2():
    done = subprocess.run(
        [sys.executable, SCRIPT, "--nope"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "unrecognized arguments: --nope" in done.stderr
    assert done.stderr.count("\n") == 1
