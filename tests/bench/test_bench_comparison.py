"""Two runs beside one another: what counts as slower, and what cannot be compared."""

import copy
import json

import pytest
from command import call
from sharedtensor_bench.comparison import (
    Change,
    ComparisonError,
    compared,
    render,
)
from sharedtensor_bench.results import Result
from test_bench_results import MACHINE, ROW, results

SUBJECT = ("reference", "file_system")
PLACE = (ROW, "pipe", "fork", "us")
BEFORE = (10.0, 11.0, 12.0, 13.0, 14.0)


def timed(ratios, floor=2.0, place=PLACE):
    samples = [ratio * floor for ratio in ratios]
    return Result(*SUBJECT, *place, samples, [floor] * len(samples))


def change(before, now):
    (cell,) = compared(results(before), results(now)).cells
    return cell.change


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ((14.5, 20.0, 21.0, 22.0, 23.0), Change.SLOWER),
        ((13.5, 20.0, 21.0, 22.0, 23.0), Change.WITHIN),
        ((14.0, 20.0, 21.0, 22.0, 23.0), Change.WITHIN),
        ((9.5, 1.0, 2.0, 3.0, 4.0), Change.FASTER),
        ((10.5, 1.0, 2.0, 3.0, 4.0), Change.WITHIN),
        ((20.0, 21.0, 22.0, 23.0), Change.TOO_FEW),
    ],
)
def test_cell_is_slower_only_beyond_the_spread_of_both_runs(now, expected):
    enough = timed((90.0,) * 5, place=("state-dict", *PLACE[1:]))
    found = compared(results(timed(BEFORE), enough), results(timed(now), enough))
    assert found.cells[0].change is expected


def test_a_machine_that_takes_longer_for_everything_makes_nothing_slower():
    assert change(timed(BEFORE, floor=2.0), timed(BEFORE, floor=50.0)) is Change.WITHIN


def test_an_implementation_that_takes_as_long_on_a_faster_machine_is_slower():
    before, now = timed(BEFORE, floor=50.0), timed(BEFORE, floor=50.0)
    now.floor = [10.0] * 5
    assert change(before, now) is Change.SLOWER


def test_runs_without_a_cell_in_common_are_refused():
    other = timed(BEFORE, place=("state-dict", "pipe", "fork", "us"))
    with pytest.raises(ComparisonError, match="no row was measured with a floor in"):
        compared(results(timed(BEFORE)), results(other))


def test_runs_with_too_few_repeats_are_refused():
    few = timed(BEFORE[:4])
    with pytest.raises(ComparisonError, match="no row has 5 repeats in both runs"):
        compared(results(timed(BEFORE)), results(few))


def test_what_is_counted_is_not_compared():
    counted = Result(*SUBJECT, "descriptors-sender", "", "fork", "descriptors", [1.0])
    found = compared(
        results(timed(BEFORE), counted), results(timed(BEFORE), copy.copy(counted))
    )
    assert len(found.cells) == 1
    assert (found.only_before, found.only_now) == (0, 0)


def test_text_names_the_greatest_change_first_and_what_was_left_out():
    slow, slower = ("state-dict", *PLACE[1:]), ("thousand-new", *PLACE[1:])
    alone = ("new-4B-one-way", *PLACE[1:])
    before = results(
        timed(BEFORE),
        timed(BEFORE, place=slow),
        timed(BEFORE, place=slower),
        timed(BEFORE, place=alone),
    )
    now = results(
        timed(BEFORE),
        timed([2 * one for one in BEFORE], place=slow),
        timed([8 * one for one in BEFORE], place=slower),
    )
    now.machine = MACHINE | {"wake_up": {"mode": "fast", "median_us": 8.0}}
    text = render(compared(before, now))
    assert text.index("thousand-new pipe fork") < text.index("state-dict pipe fork")
    assert "12.0 (10.0 to 14.0)  24.0 (20.0 to 28.0)  2.00" in text
    assert "measured only before, not compared: 1 cell" in text
    assert "slow to wake before and is fast now" in text
    assert "3 cells compared: 2 slower, 0 faster, 1 within the spread" in text


# The command, with files and with a measurement


@pytest.fixture
def written(tmp_path):
    """Write a run into a file; return its path."""

    def write(name, *found, **changes):
        path = tmp_path / name
        data = json.loads(results(*found).as_json())
        path.write_text(json.dumps(data | changes))
        return path

    return write


def test_status_says_whether_something_became_slower(written):
    old = written("old.json", timed(BEFORE))
    new = written("new.json", timed([2 * one for one in BEFORE]))
    slower = call("bench", "--results", new, "--compare", old)
    assert (slower.returncode, slower.stderr) == (1, "")
    assert "1 cell compared: 1 slower" in slower.stdout
    faster = call("bench", "--results", old, "--compare", new)
    assert (faster.returncode, faster.stderr) == (0, "")
    assert "1 cell compared: 0 slower, 1 faster" in faster.stdout


def test_recorded_figures_are_shown_without_measuring(written):
    done = call("bench", "--results", written("old.json", timed(BEFORE)))
    assert done.returncode == 0, done.stderr
    assert "a shared tensor again, held by the receiver, one way" in done.stdout
    assert "24.0 us" in done.stdout


def test_what_was_measured_is_compared(bench, written):
    never = ("resend-held-round-trip", "pipe", "fork", "us")
    subject = ("reference", "file_descriptor")
    fast = Result(*subject, *never, [0.001] * 5, [1.0] * 5)
    old = written("old.json", fast)
    rows = ("--rows=resend-held-round-trip", "--repeats=5")
    done = bench("--impl=reference", *rows, f"--compare={old}")
    assert done.status == 1, done.err
    assert "1 cell compared: 1 slower" in done.out
    assert done.left == []


NO_MACHINE = {"machine": {}}
NO_REPEATS = {"options": {}}
NO_RESULTS = {"results": [1, 2]}
WORDS = {"results": [{**vars(timed(BEFORE)), "samples": ["fast"]}]}
NO_TIME = {"results": [{**vars(timed(BEFORE)), "samples": [0.0]}]}
NEVER = {"results": [{**vars(timed(BEFORE)), "floor": [float("inf")]}]}


@pytest.mark.parametrize(
    "changes", [NO_MACHINE, NO_REPEATS, NO_RESULTS, WORDS, NO_TIME, NEVER]
)
def test_a_file_that_holds_something_else_is_refused_in_one_sentence(written, changes):
    old = written("old.json", timed(BEFORE), **changes)
    done = call("bench", "--results", old)
    assert done.returncode == 4
    sentence = f"shared-tensor-spec: {old} has no results of a benchmark\n"
    assert done.stderr == sentence


def test_a_row_that_is_not_known_any_more_is_shown_by_its_name(written):
    old = written("old.json", timed(BEFORE, place=("retired", "pipe", "fork", "us")))
    done = call("bench", "--results", old)
    assert done.returncode == 0, done.stderr
    assert "retired (pipe, fork)\n" in done.stdout


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((), "name what to measure (--impl), or a file (--results)"),
        (("--results=a", "--impl=b"), "--results measures nothing, so --impl is not"),
        (("--results=a", "--start-method=fork"), "so --start-method is not allowed"),
        (("--results=a", "--repeats=3"), "so --repeats is not allowed"),
        (
            ("--impl=reference", "--compare=/no/file"),
            "/no/file cannot be read: No such",
        ),
        (("--results=/no/file",), "/no/file cannot be read: No such file"),
        (("--results=/",), "/ cannot be read: Is a directory"),
    ],
)
def test_wrong_use_is_answered_with_one_sentence(options, sentence):
    done = call("bench", *options)
    assert done.returncode == 4
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
