"""Batches are a partition that every worker makes alike."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from planned_cases import FORK, SPAWN, planned
from sharedtensor_conformance.adapters.loader import load_implementation
from sharedtensor_conformance.plugin.batches import (
    BATCHES_PER_WORKER,
    MIN_BATCH_SECONDS,
    batches_of,
)
from sharedtensor_conformance.plugin.durations import load_durations
from sharedtensor_conformance.plugin.enumeration import all_cases, suite_tests
from sharedtensor_conformance.plugin.matrix import Selection


def no_cause(case):
    return None


def numbers(cases, workers, seconds=lambda case: MIN_BATCH_SECONDS, cause=no_cause):
    """Return the number of the batch of each case, and all batches."""
    found = batches_of(cases, workers, seconds, cause)
    return [found.number_of(case) for case in cases], found


def test_one_worker_gets_one_batch():
    cases = [planned(f"test_{n}") for n in range(9)]
    assert numbers(cases, workers=1)[0] == [0] * 9


def test_batches_of_a_configuration_take_about_the_same_time():
    cases = [planned(f"test_{n}") for n in range(40)]
    of_case, found = numbers(cases, workers=2)
    assert Counter(of_case) == dict.fromkeys(range(2 * BATCHES_PER_WORKER), 10)
    assert found.seconds == {FORK.id: [10 * MIN_BATCH_SECONDS] * 2 * BATCHES_PER_WORKER}


def test_short_configuration_is_one_batch():
    short = [planned(f"test_{n}") for n in range(8)]
    long = [planned(f"test_{n}", SPAWN) for n in range(8)]
    took = {FORK: MIN_BATCH_SECONDS / 9, SPAWN: 100.0}
    _, found = numbers([*short, *long], 4, lambda case: took[case.configuration])
    assert len(found.seconds[FORK.id]) == 1 < len(found.seconds[SPAWN.id])


def test_what_runs_last_is_in_each_batch():
    cases = [
        *(planned(f"test_{n}") for n in range(40)),
        planned("test_end", runs_last=True),
    ]
    of_case, found = numbers(cases, workers=3)
    assert set(of_case[:-1]) == set(range(found.count(FORK)))
    assert found.count(FORK) == len(found.seconds[FORK.id]) > 1
    assert cases[-1].id not in found.numbers


def test_configuration_has_a_batch_where_nothing_else_runs_in_it():
    of_case, found = numbers([planned("test_end", runs_last=True)], workers=3)
    assert (of_case, found.count(FORK)) == ([0], 1)


def test_cases_that_start_their_processes_are_in_no_batch():
    _, found = numbers([planned(f"test_{n}", isolated=True) for n in range(9)], 2)
    assert (found.numbers, found.seconds) == ({}, {})


def test_cases_of_one_cause_stay_together_and_cost_what_one_does():
    cases = [planned(f"test_{n}") for n in range(40)]

    def cause(case):
        return "known" if case.test[-1] == "0" else None  # four of them

    of_case, found = numbers(cases, workers=2, cause=cause)
    together = {n for case, n in zip(cases, of_case, strict=True) if cause(case)}
    assert len(together) == 1
    assert sum(found.seconds[FORK.id]) == 37 * MIN_BATCH_SECONDS


@pytest.mark.parametrize("name", ["reference", "torch", "stdlib"])
def test_batches_do_not_depend_on_the_order_of_the_cases(name):
    cases = list(all_cases(Selection(), load_implementation("reference")))
    seconds = load_durations(name, None).seconds
    known = batches_of(cases, 4, seconds, no_cause)
    for seed in range(3):
        other = random.Random(seed).sample(cases, len(cases))
        assert batches_of(other, 4, seconds, no_cause).numbers == known.numbers
    sharing = {case.id for case in cases if case.shares_processes}
    last = {case.id for case in cases if case.marking.runs_last}
    assert set(known.numbers) == sharing - last


def test_each_test_has_a_name_of_its_own():
    """By which its file is found where pytest tells none."""
    names = Counter(function.__name__ for _, function in suite_tests())
    assert [name for name, count in names.items() if count > 1] == []
