"""Segments that are kept for later use are no leak, up to the number declared."""

import pytest
from sharedtensor_conformance.harness.stage_ledger import Holdings

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
    done = suite(f"--impl=keeping_adapters:{adapter}", "--clause=LIFE-7")
    assert verdicts(done, LEAVES) == {expected}, done.text
    assert verdicts(done, CLOSING) == {expected}, done.text


def reading(segments, descriptors):
    """Return what the ledger shows of one process."""
    held = {"descriptors": descriptors, "mappings": 3, "threads": 1, "sockets": 0}
    held |= {"targets": {"/memfd:": descriptors}, "mapped": {}, "command": "it"}
    return {"processes": {"7": held}, "segments": segments, "files": []}


@pytest.mark.parametrize(("kept", "over"), [(0, True), (1, True), (2, False)])
def test_what_is_allowed_is_counted(kept, over):
    names = {7: "peer"}
    before = Holdings(reading(["a"], 4), names, kept)
    now = Holdings(reading(["a", "b", "c"], 6), names, kept)
    assert bool(now.growth_since(before)) == over
    assert bool(now.descriptors_since(before, {"peer": 0})) == over
