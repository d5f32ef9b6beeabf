"""Segments that are kept for later use are no leak, up to the number declared."""

from copy import deepcopy
from types import SimpleNamespace

import pytest
from sharedtensor_conformance.chapters.history_state import HistoryState
from sharedtensor_conformance.chapters.shared_steps import files_of_storages
from sharedtensor_conformance.chapters.test_mgr import wait_until_removed
from sharedtensor_conformance.harness.case.outcomes import CheckFailed
from sharedtensor_conformance.harness.ledger.stage_ledger import Baseline, Holdings

LEAVES = "test_life.py::test_nothing_is_left_of_tensors_that_were_sent_and_dropped"
CLOSING = "test_ledger.py::test_nothing_is_left_of_what_the_cases_dropped"


def verdicts(done, test):
    """Return the verdicts of the cases of a test."""
    return {verdict for id, verdict in done.verdicts.items() if id.startswith(test)}


@pytest.mark.parametrize(
    ("adapter", "expected"),
    [("declared", "pass"), ("undeclared", "fail"), ("unbounded", "fail")],
)
def test_kept_segments_are_no_leak_up_to_the_number_declared(suite, adapter, expected):
    chosen = (f"--case={LEAVES}*", f"--case={CLOSING}*", "--no-repetition")
    done = suite(f"--impl=keeping_adapters:{adapter}", *chosen)
    assert verdicts(done, LEAVES) == {expected}, done.text
    assert verdicts(done, CLOSING) == {expected}, done.text


def reading(segments, descriptors, files, mapped=()):
    """Return what the ledger shows of one process: descriptors of these files."""
    held = {"descriptors": descriptors, "mappings": 3 + len(mapped), "threads": 1}
    held |= {"targets": {"/memfd:": descriptors}, "mapped": {}, "command": "it"}
    held |= {"files_open": sorted({*files}), "files_mapped": sorted({*mapped})}
    return {"processes": {"7": held}, "segments": segments, "files": []}


@pytest.mark.parametrize(("kept", "over"), [(0, True), (1, True), (2, False)])
def test_what_is_allowed_is_counted(kept, over):
    names = {7: "peer"}
    before = Holdings(reading(["a"], 4, ["0:1"]), names, kept)
    now = Holdings(reading(["a", "b", "c"], 6, ["0:1", "0:2", "0:3"]), names, kept)
    assert bool(now.growth_since(before)) == over
    assert bool(now.descriptors_since(before, {"peer": 0})) == over


@pytest.mark.parametrize(
    ("descriptors", "mapped", "thing"),
    [(6, ["0:1"], "descriptor"), (5, ["0:1", "0:1"], "mapping"), (5, ["0:1"], "")],
)
def test_a_kept_segment_has_one_descriptor_and_one_mapping(descriptors, mapped, thing):
    """Much may be kept; the process has one more segment open and one more mapped."""
    names = {7: "peer"}
    readings = [
        reading(["a"], 4, ["0:2"]),
        reading(["a"], descriptors, ["0:1", "0:2"], mapped),
    ]
    before, now = (Holdings(one, names, 8) for one in readings)
    assert [leak.resource for leak in now.growth_since(before).leaks] == [thing][
        : len(thing)
    ]
    is_over = thing == "descriptor"
    assert bool(now.descriptors_since(before, {"peer": 0})) == is_over
    ledger = SimpleNamespace(read=lambda: deepcopy(readings[0]))
    baseline = Baseline(ledger, lambda: names, lambda: 8)
    baseline.take()
    ledger.read = lambda: deepcopy(readings[1])
    found = baseline.growth().leaks
    assert [leak.resource for leak in found] == [thing][: len(thing)]


def stage_with(segments, kept, processes=1):
    """Return what stands in for a stage in which these segments are there."""
    return SimpleNamespace(
        implementation=SimpleNamespace(kept_segments=kept),
        kept=kept * processes,
        ledger=SimpleNamespace(segments=lambda: set(segments)),
        grace=0.01,
        owner=SimpleNamespace(deadline=0.01),
    )


def test_storages_are_found_in_files_of_their_own():
    stage = stage_with({"old", "a", "b"}, 0)
    assert files_of_storages(stage, {"old"}, 2) == {"a", "b"}
    for count in (1, 3):
        with pytest.raises(CheckFailed, match="each storage has a file"):
            files_of_storages(stage, {"old"}, count)


def test_storages_are_found_in_a_file_that_was_there_before():
    assert files_of_storages(stage_with({"old"}, 1), {"old"}, 3) == {"old"}
    with pytest.raises(CheckFailed, match="each storage has a file"):
        files_of_storages(stage_with(set(), 1), set(), 1)


@pytest.mark.parametrize(("kept", "processes"), [(0, 2), (1, 1), (2, 0)])
def test_names_stay_that_are_kept_by_the_processes_that_live(kept, processes):
    too_few = stage_with({"a", "b"}, kept, processes)
    with pytest.raises(CheckFailed, match=r"names go: \['a', 'b'\]"):
        wait_until_removed(too_few, too_few, {"a", "b"}, "names go")
    enough = stage_with({"a", "b"}, 1, 2)
    wait_until_removed(enough, enough, {"a", "b"}, "names go")


@pytest.mark.parametrize(
    ("kept", "there", "holds"),
    [
        *((0, 1, False), (0, 2, True), (0, 3, False)),
        *((1, 0, False), (1, 1, True), (1, 4, True), (1, 5, False)),
    ],
)
def test_histories_count_the_segments_that_are_kept(kept, there, holds):
    """Two storages have names, and two processes live."""
    stage = stage_with({f"segment-{number}" for number in range(there)}, kept, 2)
    stage.implementation.claims = {"strategy-fs"}
    stage.configuration = SimpleNamespace(strategy="file_system")
    state = HistoryState(stage, [])
    state.model.name_range = lambda: (2, 2)
    if holds:
        state.verify_names()
    else:
        with pytest.raises(CheckFailed, match="segments have names"):
            state.verify_names()
