"""Figures: what follows from samples, and how they are written, read and shown."""

import pytest
from sharedtensor_bench.controller import Bench
from sharedtensor_bench.machine import wake_up_mode
from sharedtensor_bench.results import (
    Result,
    Results,
    ResultsError,
    Subject,
    read_results,
    slowdown_of_others,
)
from sharedtensor_bench.rows import (
    MIB,
    ROWS,
    Cell,
    UnknownRow,
    cells_of,
    chosen_rows,
)
from sharedtensor_bench.table import render

ROW = "resend-held-one-way"
MACHINE = {
    **{"processor": "A processor", "cores": 2, "kernel": "Linux 6", "load": 0.1},
    **{"python": "3.11.7", "wake_up": {"mode": "slow", "median_us": 61.0}},
}


def result(implementation="reference", samples=(4.0, 2.0, 3.0, 1.0), floor=(), **more):
    names = (implementation, "file_system", ROW, "pipe", "fork", "us")
    return Result(*names, samples=list(samples), floor=list(floor), **more)


def results(*found):
    subjects = [Subject(one.implementation, one.strategy) for one in found]
    day = "2026-11-21T06:00:00+00:00"
    return Results(day, MACHINE, {"repeats": 4}, subjects, list(found))


def test_median_and_quartiles_are_those_of_the_samples():
    assert result().median == 2.5
    assert result().quartiles == (1.75, 3.25)
    assert result(samples=[1.0]).quartiles is None
    assert result(samples=[]).median is None


def test_the_multiple_of_the_floor_is_taken_within_each_repeat():
    assert result(samples=[2.0, 90.0, 8.0], floor=[1.0, 30.0, 2.0]).over_floor == 3.0
    assert result().over_floor is None


def test_only_results_of_the_same_cell_are_compared():
    ours, theirs = result(), result("torch", samples=[10.0])
    elsewhere = Result("torch", "file_system", ROW, "queue", "fork", "us", [90.0])
    absent = result("stdlib", samples=[], absent="not claimed")
    assert slowdown_of_others(ours, [ours, theirs, elsewhere, absent]) == {"torch": 4.0}


def test_what_is_written_can_be_read(tmp_path):
    path = tmp_path / "bench.json"
    written = results(result(floor=(1.0, 1.0, 1.0, 1.0)), result("torch"))
    written.scaling = [{"what": "size", "to": 4}]
    path.write_text(written.as_json())
    assert read_results(path) == written


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "has no results"),
        ('{"schema": 1}', "has no results"),
        ('{"schema": 99}', "has version 99 of the form; expected 1"),
        ("[]", "has no results"),
    ],
)
def test_a_file_with_something_else_is_refused(tmp_path, text, sentence):
    path = tmp_path / "bench.json"
    path.write_text(text)
    with pytest.raises(ResultsError, match=sentence):
        read_results(path)
    with pytest.raises(ResultsError, match="No such file"):
        read_results(tmp_path / "nothing.json")


def test_the_table_shows_medians_ratios_and_what_is_absent():
    found = [
        result(floor=(1.0, 1.0, 1.0, 1.0)),
        result("torch", samples=[1250.0]),
        result("stdlib", samples=[], absent="not claimed: views"),
    ]
    text = render(results(*found))
    assert "wake-up: slow (61.0 us" in text
    lines = {line.split()[0]: line for line in text.splitlines() if "file_sys" in line}
    assert "2.5 us" in lines["reference"]
    assert "1.8 to 3.2" in lines["reference"]
    assert "2.50" in lines["reference"]
    assert "torch 5e+02" in lines["reference"]
    assert "1,250 us" in lines["torch"]
    assert "not claimed: views" in lines["stdlib"]


def test_a_busy_machine_is_said_to_be_busy():
    quiet, loaded = results(result()), results(result())
    loaded.machine = MACHINE | {"load": 15.8}
    assert "busy" not in render(quiet)
    assert "busy with other work (load 15.8 on 2 cores)" in render(loaded)


def test_rows_are_chosen_by_pattern_and_large_ones_on_request():
    names = [row.name for row in chosen_rows(["first-share-*"], large=False)]
    assert names == ["first-share-1MiB", "first-share-64MiB"]
    names = [row.name for row in chosen_rows(["first-share-*"], large=True)]
    assert names[-1] == "first-share-1GiB"
    assert [row.name for row in chosen_rows(["first-share-1GiB"], large=False)]
    assert len(chosen_rows([], large=True)) == len(ROWS)
    with pytest.raises(UnknownRow, match="no row is called 'x'"):
        chosen_rows(["x"], large=False)


def test_cells_are_made_along_the_axes_of_a_row():
    rows = [ROWS["state-dict"], ROWS["child-start"], ROWS["first-share-1MiB"]]
    assert cells_of(rows, ["pipe", "queue"], ["fork"]) == [
        Cell("state-dict", "pipe", "fork"),
        Cell("state-dict", "queue", "fork"),
        Cell("child-start", "", "fork"),
        Cell("first-share-1MiB"),
    ]
    assert ROWS["first-share-1MiB"].nbytes == MIB


def test_each_implementation_begins_as_often_as_the_others(monkeypatch):
    bench = Bench([], [], announce=lambda words: None)
    bench.drivers = ["a", "b", "c"]
    order = []
    monkeypatch.setattr(bench, "measure", lambda driver, cell: order.append(driver))
    for number in range(4):
        bench.repeat(["a cell"], number, 4)
    assert "".join(order) == "abc" + "bca" + "cab" + "abc"


def test_the_machine_is_slow_to_wake_by_its_median():
    assert wake_up_mode([8.0, 9.0, 95.0]) == "fast"
    assert wake_up_mode([8.0, 70.0, 95.0]) == "slow"
