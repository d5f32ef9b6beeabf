"""Shards are a partition that every machine makes alike, and merge to the whole run."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from planned_cases import FORK, SPAWN, planned
from sharedtensor_conformance.adapters.loader import load_implementation
from sharedtensor_conformance.cli import main
from sharedtensor_conformance.harness.case.axes import Configuration
from sharedtensor_conformance.plugin.durations import Durations, load_durations
from sharedtensor_conformance.plugin.enumeration import PlannedCase, all_cases
from sharedtensor_conformance.plugin.matrix import Selection
from sharedtensor_conformance.plugin.shards import digest, shards_of
from sharedtensor_conformance.report.records import read_report


@pytest.fixture(scope="module")
def reference() -> list[PlannedCase]:
    return list(all_cases(Selection(), load_implementation("reference")))


@pytest.fixture(scope="module")
def recorded() -> Durations:
    return load_durations("reference", None)


# The partition


@pytest.mark.parametrize("count", [1, 2, 3, 8, 40])
def test_each_case_is_in_one_shard_and_last_ones_where_they_judge(
    reference, recorded, count
):
    shards = shards_of(reference, count, recorded.seconds)
    times = Counter(case.id for cases in shards for case in cases)
    assert set(times) == {case.id for case in reference}
    once = {case.id for case in reference if not case.marking.runs_last}
    assert {times[id] for id in once} == {1}
    for cases in shards:
        shared = {case.configuration.id for case in cases if case.shares_processes}
        for case in reference:
            if case.marking.runs_last and not case.configuration.why_not:
                assert (case in cases) == (case.configuration.id in shared)


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_shards_take_about_the_same_time(reference, recorded, count):
    shards = shards_of(reference, count, recorded.seconds)
    costs = [sum(map(recorded.seconds, cases)) for cases in shards]
    assert max(costs) < 1.1 * sum(costs) / count


def test_order_of_cases_decides_nothing(reference, recorded):
    known = digest(shards_of(reference, 3, recorded.seconds))
    shuffled = random.Random(0).sample(reference, len(reference))
    for other in (reference[::-1], shuffled):
        shards = shards_of(other, 3, recorded.seconds)
        assert digest(shards) == known


def test_digest_tells_other_partitions_apart(reference, recorded):
    known = digest(shards_of(reference, 3, recorded.seconds))
    assert digest(shards_of(reference[1:], 3, recorded.seconds)) != known
    assert digest(shards_of(reference, 4, recorded.seconds)) != known
    assert digest(shards_of(reference, 3, lambda case: 1.0)) != known


def test_case_with_processes_of_its_own_fills_a_shard_up():
    cases = [
        planned("a"),
        planned("b"),
        planned("c", isolated=True),
        planned("z", runs_last=True),
    ]
    took = {"a": 4.0, "b": 4.0, "c": 1.0, "z": 0.0}
    shards = shards_of(cases, 2, lambda case: took[case.test[-1]])
    names = [[case.test[-1] for case in shard] for shard in shards]
    assert names == [["a", "c", "z"], ["b", "z"]]


# What a case takes

TABLE = {
    "test_share.py::a": {FORK.id: 1.0, SPAWN.id: 3.0},
    "test_share.py::b": {FORK.id: 2.0},
}


def test_duration_is_estimated_by_what_is_known():
    durations = Durations(TABLE)
    elsewhere = Configuration("default", "forkserver")
    assert durations.seconds(planned("a", SPAWN)) == 3.0
    assert durations.seconds(planned("b", SPAWN)) == 2.0
    assert durations.seconds(planned("a", elsewhere)) == 2.0
    assert durations.seconds(planned("new", FORK)) == 1.5
    assert durations.seconds(planned("new", SPAWN)) == 3.0
    assert durations.seconds(planned("new", elsewhere)) == 2.25
    assert Durations({}).seconds(planned("a")) > 0


def test_case_that_cannot_run_takes_no_time():
    unsupported = Configuration("", "", why_not="not claimed", unsupported=True)
    assert Durations(TABLE).seconds(planned("a", unsupported)) == 0


def test_what_is_recorded_are_cases_that_exist(reference):
    tests = {case.test for case in reference}
    tests |= {
        case.test
        for case in all_cases(
            Selection(profiles=("fault-table",)), load_implementation("reference")
        )
    }
    for name in ("reference", "torch"):
        assert set(load_durations(name, None).tests) <= tests


# Runs

CHOSEN = (
    *("--impl=miniatures:plain", "--no-repetition"),
    *("--clause=SHARE-1", "--clause=SHARE-3", "--clause=CHAN-1", "--clause=LIFE-7"),
)


def judged(report):
    """Return what a report says but for times and evidence."""
    summary = replace(report.summary, seconds=0, finished="")
    selection = report.run.selection
    return {case.id: case.verdict for case in report.cases}, summary, selection


@pytest.mark.takes(15)
def test_merged_shards_are_what_one_run_is(suite, capsys):
    """Also where the machines of some have workers."""
    whole = suite(*CHOSEN).report
    workers = {1: "-n1", 2: "-n0"}
    shards = [suite(*CHOSEN, f"--shard={n}/2", count) for n, count in workers.items()]
    assert all(f"shard {n}/2 of a partial" in s.text for n, s in enumerate(shards, 1))
    assert all(shard.cases for shard in shards)
    output = suite.folder / "merged.jsonl"
    files = [str(shard.file) for shard in reversed(shards)]
    assert main(["merge", *files, "--output", str(output)]) == 1
    merged = read_report(output)
    assert judged(merged) == judged(whole)
    last = [case.id for s in shards for case in s.cases if "test_ledger" in case.id]
    assert len(last) > len(set(last))
    assert "Plain" in capsys.readouterr().out


def test_leak_in_one_shard_is_one_of_the_whole(suite):
    test = "test_receiver_finds_values_shape_and_dtype"
    chosen = (
        *("--impl=leaks:one", "--strategy=descriptor", "--no-repetition"),
        *(f"--case=test_share.py::{test}*", "--case=test_ledger.py::*dropped*"),
    )
    whole = suite(*chosen)
    shards = [suite(*chosen, f"--shard={n}/2") for n in (1, 2)]
    output = suite.folder / "merged.jsonl"
    files = [str(shard.file) for shard in shards]
    assert main(["merge", *files, "--output", str(output)]) == 1
    merged = read_report(output)
    assert judged(merged) == judged(whole.report)
    (leaked,) = (case for case in merged.cases if "dropped" in case.id)
    assert leaked.verdict == "fail"
    assert "peer has 1 more descriptor (1 x /dev/null)" in leaked.evidence


def test_shard_that_would_be_empty_is_refused(suite):
    chosen = ("--impl=numpy-copy", "--clause=SHARE-3", "--one-per-clause")
    done = suite(*chosen, "--shard=2/2")
    assert done.status == 4
    assert "the shard 2/2 is empty: the selection has only 1 case" in done.text
