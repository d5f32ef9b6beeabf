"""Makes the plan of a run: the cases that its options select, and its shard of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pytest

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.plugin.durations import Durations, load_durations
from sharedtensor_conformance.plugin.enumeration import PlannedCase, all_cases
from sharedtensor_conformance.plugin.matrix import (
    Selection,
    matches,
)
from sharedtensor_conformance.plugin.one_per_clause import one_per_clause
from sharedtensor_conformance.plugin.shards import digest, shards_of
from sharedtensor_conformance.report import records
from sharedtensor_conformance.report.records import ReportError


@dataclass(frozen=True)
class Plan:
    """The cases of a run, by their ids.

    Args:
        known: all cases of the chosen clauses, profiles and configurations, except
            those of tests that have no chosen case.
        chosen: the cases to judge.
        shard: the part of the selection that they are; None means all of it.
    """

    known: frozenset[str]
    chosen: dict[str, PlannedCase]
    shard: records.Shard | None

    @cached_property
    def tests(self) -> frozenset[str]:
        """The tests that have a chosen case, each by its file and name."""
        return frozenset(case.test for case in self.chosen.values())


PLAN = pytest.StashKey[Plan]()


def plan_of(
    config: pytest.Config, selection: Selection, implementation: Implementation
) -> Plan:
    """Return the plan of a run; it is made once, at the first call.

    Raises:
        pytest.UsageError: the report with the durations cannot be read.
    """
    if PLAN not in config.stash:
        config.stash[PLAN] = _make_plan(config, selection, implementation)
    return config.stash[PLAN]


def _make_plan(
    config: pytest.Config, selection: Selection, implementation: Implementation
) -> Plan:
    known = list(all_cases(selection, implementation))
    chosen, shard = _select(known, selection), None
    if config.option.shard:
        number, count = config.option.shard
        seconds = durations_of(config, implementation).seconds
        shards = shards_of(chosen, count, seconds)
        shard = records.Shard(
            number, count, len(chosen), digest(shards), full=selection.full
        )
        chosen = list(shards[number - 1])
    ids = frozenset(case.id for case in known)
    return Plan(ids, {case.id: case for case in chosen}, shard)


def durations_of(config: pytest.Config, implementation: Implementation) -> Durations:
    """Return the expected durations of cases.

    Raises:
        pytest.UsageError: the report given with ``--timings`` cannot be read.
    """
    try:
        return load_durations(implementation.name, config.option.timings)
    except ReportError as error:
        raise pytest.UsageError(str(error)) from None


def _select(known: list[PlannedCase], selection: Selection) -> list[PlannedCase]:
    chosen = known
    if selection.cases:
        chosen = [case for case in chosen if _matches_any(case.id, selection.cases)]
    if selection.one_per_clause:
        chosen = one_per_clause(
            chosen,
            marking_of=lambda case: case.marking,
            configuration_of=lambda case: case.configuration,
            required=selection.clauses,
        )
    return chosen


def _matches_any(id: str, patterns: tuple[str, ...]) -> bool:
    return any(matches(id, pattern) for pattern in patterns)
