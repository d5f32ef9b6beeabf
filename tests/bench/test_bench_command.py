"""The command, from the outside: what it measures, refuses and leaves behind."""

import subprocess
import sys

import pytest
from sharedtensor_bench.measuring import (
    WARM_UP,
    processor_time_of,
    processor_times,
)
from sharedtensor_bench.rows import ROWS
from sharedtensor_bench.scaling import SIZES
from sharedtensor_conformance.harness.process_tree import wait_until

ADAPTER = """
from dataclasses import replace
from sharedtensor_conformance.adapters import reference

conformance_adapter = replace(
    reference.conformance_adapter, operations="broken:Operations"
)


class Operations(reference.ReferenceOperations):
    {method}
"""
SENDS_OTHERS = """def encode(self, tensor):
        other = tensor.clone()
        other[0] = 99
        return other
"""
SHARES_NOTHING = """def share(self, tensor):
        return tensor
"""
FAILS = """def encode(self, tensor):
        raise ValueError("no tensor today")
"""
EXITS = """def encode(self, tensor):
        raise SystemExit("had enough")
"""
DIES = """def encode(self, tensor):
        import os
        os.abort()
"""


def test_figures_have_samples_floor_and_machine(bench):
    rows = ("--rows=resend-held-*", "--repeats=2")
    done = bench("--impl=reference", *rows, outside=True)
    assert done.status == 0, done.err
    assert done.left == []
    assert done.figures["schema"] == 1
    assert done.figures["machine"]["wake_up"]["mode"] in {"fast", "slow"}
    (subject,) = done.figures["implementations"]
    assert subject["implementation"] == "reference"
    rows = [result["row"] for result in done.figures["results"]]
    assert rows == ["resend-held-round-trip", "resend-held-one-way"]
    for result in done.figures["results"]:
        assert len(result["samples"]) == len(result["floor"]) == 2
        assert 0 < result["over_floor"] == pytest.approx(ratio_of(result), rel=0.01)
    assert "a shared tensor again, held by the receiver, answered" in done.out


def test_children_are_timed_without_the_compilation_of_modules(
    bench, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "broken.py").write_text(ADAPTER.format(method="pass"))
    done = bench("--impl=broken:conformance_adapter", "--rows=child-start")
    assert done.status == 0, done.err
    assert list(tmp_path.glob("__pycache__/broken.*.pyc"))


def ratio_of(result):
    pairs = zip(result["samples"], result["floor"], strict=True)
    return sum(sample / floor for sample, floor in pairs) / 2


def test_each_kind_of_row_is_measured(bench):
    least_over_floor = {
        "new-4B-processor": 1,
        "resend-dropped-processor": 1,
        "thousand-new": 1,
        "state-dict": 1,
        "first-share-1MiB": 0.5,
        "child-start-tensor": 0.2,
    }
    descriptors = ("descriptors-sender", "descriptors-receiver")
    rows = ("new-4B-round-trip", "new-4KiB-one-way", *least_over_floor, *descriptors)
    done = bench("--impl=reference", *(f"--rows={row}" for row in rows))
    assert done.status == 0, done.err
    found = {result["row"]: result for result in done.figures["results"]}
    assert set(found) == set(rows)
    assert all(found[row]["median"] > 0 for row in rows[:2]), found
    for row, least in least_over_floor.items():
        assert found[row]["over_floor"] > least, found[row]
    assert [found[row]["samples"] for row in descriptors] == [[1.0], [1.0]]


BURNS = """def {name}(self, {argument}):
        from time import process_time
        end = process_time() + 0.002
        while process_time() < end:
            pass
        return super().{name}({argument})
"""


@pytest.mark.parametrize(
    ("name", "argument"),
    [("encode", "tensor"), ("decode", "message"), ("release", "tensor")],
)
def test_processor_time_is_that_of_both_sides_and_of_the_drop(
    bench, tmp_path, name, argument
):
    method = BURNS.format(name=name, argument=argument)
    (tmp_path / "broken.py").write_text(ADAPTER.format(method=method))
    done = bench("--impl=broken:conformance_adapter", "--rows=resend-dropped-processor")
    assert done.status == 0, done.err
    (found,) = done.figures["results"]
    assert 2000 < found["median"] < 8000


def test_processor_time_of_a_manager_is_found_by_its_pattern():
    program = "import sys; sys.stdin.read(1); exec('while True: pass')"
    command = [sys.executable, "-c", program, "burns-here"]
    burning = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        # A program has its command line a moment after its descriptors are closed.
        found = lambda: list(processor_times("burns-h[e]re"))  # noqa: E731
        assert wait_until(lambda: found() == [burning.pid], 30), found()
        before = processor_time_of(burning.pid)
        burning.stdin.close()
        assert wait_until(lambda: processor_time_of(burning.pid) > before + 0.05, 30)
        assert processor_times("burns-here")[burning.pid] > before
    finally:
        burning.kill()
        burning.wait()
    assert processor_times("burns-here") == {}
    assert processor_times("") == {}
    with pytest.raises(OSError, match="No such process"):
        processor_time_of(burning.pid)


def test_implementations_are_compared_where_both_claim_a_row(bench):
    options = ("--impl=reference", "--impl=stdlib", f"--python=stdlib={sys.executable}")
    done = bench(*options, "--rows=new-4B-round-trip", "--rows=first-share-1MiB")
    assert done.status == 0, done.err
    absent = {
        (found["implementation"], found["row"]): found["absent"]
        for found in done.figures["results"]
    }
    assert absent.pop(("stdlib", "first-share-1MiB")) == (
        "not claimed: arrays, resize, share"
    )
    assert set(absent.values()) == {""}
    assert "not claimed: arrays, resize, share" in done.out


@pytest.mark.parametrize(
    ("method", "row", "sentence"),
    [
        (SENDS_OTHERS, "resend-held-one-way", "delivers wrong values: in resend-held"),
        (SENDS_OTHERS, "resend-dropped-one-way", "add up to 24 where they were sent"),
        (SENDS_OTHERS, "thousand-new", "delivers wrong values: in thousand-new"),
        (SHARES_NOTHING, "first-share-1MiB", "the tensor is not shared"),
        (FAILS, "new-4B-round-trip", "ValueError: no tensor today"),
        (EXITS, "new-4B-round-trip", "SystemExit: had enough"),
        (DIES, "new-4B-round-trip", "ended in 'measure new-4B-round-trip pipe fork'"),
    ],
)
def test_what_fails_has_the_reason_instead_of_figures(
    bench, tmp_path, method, row, sentence
):
    (tmp_path / "broken.py").write_text(ADAPTER.format(method=method))
    done = bench("--impl=broken:conformance_adapter", f"--rows={row}")
    assert done.status == 1, done.err
    (found,) = done.figures["results"]
    assert found["absent"].startswith("failed: ")
    assert found["samples"] == found["floor"] == []
    assert done.left == []
    assert sentence in found["absent"]
    assert sentence in last_line(done.err)
    assert "Traceback" not in done.err


FAILS_IN_THE_SECOND_REPEAT = """small = 0

    def encode(self, tensor):
        Operations.small += len(self.values(tensor)) == 1
        if Operations.small > {most}:
            raise ValueError("no more of these\\nis told on two lines")
        return super().encode(tensor)
"""


def test_the_rest_is_measured_by_an_implementation_that_starts_anew(bench, tmp_path):
    batch = WARM_UP + ROWS["new-4B-round-trip"].count + 1  # one to know its size
    method = FAILS_IN_THE_SECOND_REPEAT.format(most=batch + 2)
    (tmp_path / "broken.py").write_text(ADAPTER.format(method=method))
    rows = ("--rows=new-4B-round-trip", "--rows=resend-held-round-trip")
    done = bench("--impl=broken:conformance_adapter", *rows, "--repeats=3")
    assert done.status == 1, done.err
    failed, other = done.figures["results"]
    why = "could not do 'measure new-4B-round-trip pipe fork': ValueError: no more of"
    assert failed["absent"] == f"failed: {why} these"
    assert failed["samples"] == failed["floor"] == []
    assert len(other["samples"]) == 3
    assert other["absent"] == ""
    assert failed["absent"] in done.out
    assert done.left == []


def test_a_point_of_the_scaling_that_fails_has_the_reason(bench, tmp_path, monkeypatch):
    for what in SIZES:
        monkeypatch.setitem(SIZES, what, SIZES[what][:2])
    (tmp_path / "broken.py").write_text(ADAPTER.format(method=FAILS))
    done = bench("--impl=broken:conformance_adapter", "--scaling")
    assert done.status == 1, done.err
    points = done.figures["scaling"]
    for point in points:
        assert point["absent"].startswith("failed: could not do 'scale ")
        assert point["median"] is None
        assert point["samples"] == []
    assert len(points) > 3
    assert f"no tensor today, and {len(points) - 1} more" in last_line(done.err)
    assert done.left == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--rows=jumps",), "no row is called 'jumps'; there are new-4B-round-trip"),
        (("--rows=first-share-1G*",), "only large rows are chosen"),
        (("--repeats=0",), "invalid positive int value: '0'"),
        (("--python=reference",), "--python takes IMPL=INTERPRETER, not 'reference'"),
        (("--python=reference=/nowhere/python",), "no interpreter '/nowhere/python'"),
        (("--python=reference=/bin/true",), "'reference' cannot be loaded: its"),
        (("--python=torch=python3",), "--python names 'torch', which no --impl names"),
        (("--json=/nowhere/at/all.json",), "/nowhere/at/all.json cannot be written"),
        (("--impl=refrence",), "did you mean 'reference'?"),
    ],
)
def test_wrong_use_is_answered_with_one_sentence(bench, options, sentence):
    done = bench("--impl=reference", *options)
    assert done.status == 4, done.err
    assert len(done.err.splitlines()) == 1
    assert sentence in done.err
    assert done.out == ""
    assert done.left == []


def test_a_module_is_not_taken_for_an_adapter_s_name(bench, tmp_path):
    (tmp_path / "stdlib.py").write_text(ADAPTER.format(method=FAILS))
    done = bench("--impl=stdlib", "--rows=descriptors-sender")
    assert done.status == 0, done.err
    (subject,) = done.figures["implementations"]
    assert subject["implementation"] == "stdlib"


def test_a_module_that_is_no_adapter_s_name_is_loaded(bench, tmp_path):
    (tmp_path / "broken.py").write_text(ADAPTER.format(method=FAILS))
    done = bench("--impl=broken", "--impl=broken:conformance_adapter")
    assert done.status == 4
    assert "two of the implementations are called 'reference'" in done.err
    assert done.left == []


def test_two_adapters_of_one_name_are_refused(bench, tmp_path):
    (tmp_path / "broken.py").write_text(ADAPTER.format(method=FAILS))
    done = bench("--impl=reference", "--impl=broken:conformance_adapter")
    assert done.status == 4
    assert "two of the implementations are called 'reference'" in done.err


def test_a_strategy_is_passed_over_where_another_one_exists(bench):
    done = bench("--impl=copy", "--strategy=telepathy", "--rows=state-dict")
    assert done.status == 0, done.err  # the other strategy that is asked for exists


def test_scaling_is_measured_along_each_axis(bench):
    done = bench("--impl=reference", "--scaling")
    assert done.status == 0, done.err
    points = {(point["what"], point["to"]) for point in done.figures["scaling"]}
    assert ("tensors", 1000) in points
    assert ("processes", 32) in points
    assert ("size", 64 << 20) in points
    assert done.figures["results"] == []
    assert done.left == []


def last_line(text):
    return text.splitlines()[-1]
