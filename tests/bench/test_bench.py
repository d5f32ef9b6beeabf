"""The benchmark, from the outside: what it measures, refuses and leaves behind."""

import subprocess
import sys
from operator import truediv
from statistics import median
from time import clock_gettime

import pytest
from sharedtensor_conformance.harness.kernel.process_tree import wait_until

BROKEN = "--impl=broken:conformance_adapter"
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
        raise ValueError("no tensor today\\nis told on two lines")
"""
EXITS = """def encode(self, tensor):
        raise SystemExit("had enough")
"""
DIES = """def encode(self, tensor):
        import os
        os.abort()
"""
BURNS = """def encode(self, tensor):
        burn(0.0003)
        return super().encode(tensor)

    def decode(self, message):
        burn(0.0006)
        return super().decode(message)

    def release(self, tensor):
        burn(0.0012)
        return super().release(tensor)


def burn(seconds):
    from time import process_time
    end = process_time() + seconds
    while process_time() < end:
        pass
"""
FAILS_LATER = """small = 0

    def encode(self, tensor):
        Operations.small += len(self.values(tensor)) == 1
        if Operations.small > {most}:
            raise ValueError("no more of these")
        return super().encode(tensor)
"""


@pytest.fixture
def broken(bench, tmp_path):
    """Run the benchmark on the reference with a faulty method."""

    def run(method, *options, **variables):
        (tmp_path / "broken.py").write_text(ADAPTER.format(method=method))
        return bench(BROKEN, *options, **variables)

    return run


def test_figures_are_written_and_shown_beside_the_first_implementation(bench):
    both = ("--impl=reference", f"--impl=stdlib={sys.executable}", "--repeats=2")
    done = bench(*both, "--rows=resend-held-*", "--rows=first-share-1MiB")
    assert done.status == 0, done.err
    assert done.left == []
    reference, stdlib, *_, absent = done.results
    assert [one["row"] for one in done.results[::2]] == [
        *("resend-held-round-trip", "resend-held-one-way", "first-share-1MiB")
    ]
    assert len(reference["samples"]) == len(reference["floor"]) == 2
    assert absent["absent"] == "not claimed: arrays, resize, share"
    lines = done.out.splitlines()
    held = lines.index(
        "resend-held-round-trip pipe fork: a shared tensor again, held by the receiver,"
        " answered"
    )
    times = median(map(truediv, reference["samples"], reference["floor"]))
    assert f"{times:.2f} (" in lines[held + 1]
    times = median(map(truediv, stdlib["samples"], reference["samples"]))
    assert f"{times:.2f} (" in lines[held + 2].partition("x floor")[2]
    assert lines[held + 2].endswith("x reference")
    assert any(one.endswith("not claimed: arrays, resize, share") for one in lines)


def test_each_kind_of_row_is_measured(bench):
    least_over_floor = {
        "new-4B-processor": 1,
        "resend-dropped-processor": 1,
        "thousand-new": 1,
        "state-dict": 1,
        "first-share-1MiB": 0.5,
        "child-start-tensor": 0.2,
        "new-4KiB-one-way": 0.2,
    }
    descriptors = ("descriptors-sender", "descriptors-receiver")
    rows = (*least_over_floor, *descriptors)
    done = bench("--impl=reference", *(f"--rows={row}" for row in rows))
    assert done.status == 0, done.err
    found = {result["row"]: result for result in done.results}
    assert set(found) == set(rows)
    for row, least in least_over_floor.items():
        assert found[row]["samples"][0] > least * found[row]["floor"][0], found[row]
    assert [found[row]["samples"] for row in descriptors] == [[1.0], [1.0]]


def test_children_are_timed_without_the_compilation_of_modules(broken, tmp_path):
    done = broken("pass", "--rows=child-start", PYTHONDONTWRITEBYTECODE="1")
    assert done.status == 0, done.err
    assert list(tmp_path.glob("__pycache__/broken.*.pyc"))


def test_processor_time_is_that_of_both_sides_and_of_the_drop(broken):
    done = broken(BURNS, "--rows=resend-dropped-processor")
    assert done.status == 0, done.err
    (found,) = done.results
    assert 2100 <= found["samples"][0] < 4200


def test_processor_time_of_a_manager_is_found_by_its_pattern():
    from bench.measuring import processor_clock, processor_times

    program = "import sys; sys.stdin.read(1); exec('while True: pass')"
    command = [sys.executable, "-c", program, "burns-here"]
    burning = subprocess.Popen(command, stdin=subprocess.PIPE)
    time = lambda: processor_times("burns-h[e]re").get(burning.pid, 0)  # noqa: E731
    try:
        # A program has its command line a moment after its descriptors are closed.
        assert wait_until(time, 30)
        before = time()
        burning.stdin.close()
        assert wait_until(lambda: time() > before + 0.05, 30)
    finally:
        burning.kill()
        burning.wait()
    assert processor_times("burns-here") == processor_times("") == {}
    with pytest.raises(OSError, match="Invalid argument"):
        clock_gettime(processor_clock(burning.pid))


def test_each_row_looks_at_what_is_delivered(broken):
    said = {
        "resend-held-one-way": "delivers wrong values: in resend-held",
        "resend-dropped-one-way": "add up to 24 where they were sent",
        "thousand-new": "delivers wrong values: in thousand-new",
    }
    done = broken(SENDS_OTHERS, *(f"--rows={row}" for row in said))
    assert done.status == 1, done.err
    assert {found["row"] for found in done.results} == set(said)
    for found in done.results:
        assert said[found["row"]] in found["absent"]


@pytest.mark.parametrize(
    ("method", "row", "sentence"),
    [
        (SHARES_NOTHING, "first-share-1MiB", "the tensor is not shared"),
        (FAILS, "new-4B-round-trip", "fork': ValueError: no tensor today"),
        (EXITS, "new-4B-round-trip", "SystemExit: had enough"),
        (DIES, "new-4B-round-trip", "ended in 'measure new-4B-round-trip pipe fork'"),
    ],
)
def test_what_fails_has_the_reason_instead_of_figures(broken, method, row, sentence):
    done = broken(method, f"--rows={row}")
    assert done.status == 1, done.err
    (found,) = done.results
    assert found["absent"].startswith("failed: ")
    assert sentence in found["absent"]
    assert "two lines" not in found["absent"]
    assert found["absent"] in done.out
    assert found["samples"] == found["floor"] == done.left == []
    assert "Traceback" not in done.err


def test_the_rest_is_measured_by_an_implementation_that_starts_anew(broken):
    in_one_batch = 1 + 3 + 30  # one to know its size, three to warm up
    rows = ("--rows=new-4B-round-trip", "--rows=resend-held-round-trip")
    done = broken(FAILS_LATER.format(most=in_one_batch + 2), *rows, "--repeats=3")
    assert done.status == 1, done.err
    failed, other = done.results
    why = "could not do 'measure new-4B-round-trip pipe fork': ValueError: no more of"
    assert failed["absent"] == f"failed: {why} these"
    assert failed["samples"] == failed["floor"] == done.left == []
    assert len(other["samples"]) == 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--rows=jumps",), "no row is called 'jumps'"),
        (("--repeats=0",), "invalid positive int value: '0'"),
        (("--strategy=telepathy",), "invalid choice: 'telepathy'"),
        (("--impl=copy=/nowhere/python",), "there is no interpreter '/nowhere/python'"),
        (("--impl=copy=/bin/true",), "'copy' cannot be loaded: its process printed"),
        (("--json=/nowhere/at/all.json",), "/nowhere/at/all.json cannot be written"),
        (("--impl=refrence",), "did you mean 'reference'?"),
        (("--impl=sharedtensor_conformance.adapters.reference",), "two implementation"),
    ],
)
def test_wrong_use_is_answered_with_one_sentence(call, options, sentence, capfd):
    assert call("--impl=reference", *options) == 4
    said = capfd.readouterr()
    assert len(said.err.splitlines()) == 1
    assert sentence in said.err
    assert said.out == ""


def test_a_strategy_is_passed_over_where_another_one_exists(bench):
    done = bench("--impl=stdlib", "--impl=reference", "--rows=descriptors-sender")
    assert done.status == 0, done.err
    names = [(one["implementation"], one["strategy"]) for one in done.results]
    assert names == [("stdlib", "default"), ("reference", "file_descriptor")]


def test_each_implementation_begins_as_often_as_the_others(monkeypatch):
    from bench.__main__ import Bench

    bench, order = Bench(), []
    bench.drivers = ["a", "b", "c"]
    monkeypatch.setattr(bench, "measure", lambda driver, cell: order.append(driver))
    for repeat in range(4):
        bench.measure_in_turn("a cell", repeat)
    assert "".join(order) == "abc" + "bca" + "cab" + "abc"


def test_rows_are_chosen_by_pattern_and_large_ones_only_so():
    from bench.rows import AXES, ROWS, Cell, cells_of, chosen_rows

    names = [row.name for row in chosen_rows(["first-share-*", "state-dict"])]
    sizes = [f"first-share-{size}" for size in ("1MiB", "64MiB", "1GiB")]
    assert names == ["state-dict", *sizes]
    assert {*ROWS} - {row.name for row in chosen_rows([])} == {sizes[2]}
    rows = [ROWS["state-dict"], ROWS["child-start"], ROWS[sizes[0]]]
    assert cells_of(rows, AXES | {"channel": ["pipe"], "start_method": ["fork"]}) == [
        Cell("state-dict", "pipe", "fork"),
        Cell("child-start", "", "fork"),
        Cell("first-share-1MiB"),
    ]


def test_another_implementation_is_compared_under_the_same_strategy():
    from bench.results import Result, table

    results = [
        Result("reference", "file_descriptor", "a-row", samples=[10.0]),
        Result("reference", "file_system", "a-row", samples=[20.0]),
        Result("torch", "file_system", "a-row", samples=[80.0]),
        Result("stdlib", "default", "a-row", samples=[80.0]),
    ]
    _, *first, torch, stdlib = table(results)
    assert "reference" not in "".join(line.partition(" us")[2] for line in first)
    assert torch.endswith("80.0 us  4.00 x reference")
    assert stdlib.endswith("80.0 us  8.00 x reference")
