"""Makes the plan of a run: the cases that its options select, and its shard of them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import pytest

from sharedtensor_conformance.plugin.durations import Durations, load_durations
from sharedtensor_conformance.plugin.enumeration import PlannedCase, all_cases
from sharedtensor_conformance.plugin.matrix import Selection, matches
from sharedtensor_conformance.plugin.one_per_clause import one_per_clause
from sharedtensor_conformance.plugin.shards import digest, shards_of
from sharedtensor_conformance.plugin.state import IMPLEMENTATION, SELECTION
from sharedtensor_conformance.report import records
from sharedtensor_conformance.report.records import ReportError


@dataclass(frozen=True)
class Plan:
    """The cases of a run.

    Args:
        chosen: the cases to judge, by their ids.
        shard: the part of the selection that they are; None means all of it.
    """

    chosen: dict[str, PlannedCase]
    shard: records.Shard | None

    def cases_of(self, test: str) -> list[PlannedCase]:
        """Return the chosen cases of a test, which is a file and a name."""
        return self._by_test.get(test, [])

    @cached_property
    def _by_test(self) -> dict[str, list[PlannedCase]]:
        found: defaultdict[str, list[PlannedCase]] = defaultdict(list)
        for case in self.chosen.values():
            found[case.test].append(case)
        return dict(found)


PLAN = pytest.StashKey[Plan]()


def plan_of(config: pytest.Config) -> Plan:
    """Return the plan of a run; it is made once, at the first call.

    Raises:
        pytest.UsageError: the report with the durations cannot be read.
    """
    if PLAN not in config.stash:
        config.stash[PLAN] = _make_plan(config)
    return config.stash[PLAN]


def _make_plan(config: pytest.Config) -> Plan:
    selection = config.stash[SELECTION]
    cases = list(all_cases(selection, config.stash[IMPLEMENTATION]))
    chosen, shard = _select(cases, selection), None
    if config.option.shard:
        number, count = config.option.shard
        shards = shards_of(chosen, count, durations_of(config).seconds)
        shard = records.Shard(
            number, count, len(chosen), digest(shards), full=selection.full
        )
        chosen = list(shards[number - 1])
    return Plan({case.id: case for case in chosen}, shard)


def durations_of(config: pytest.Config) -> Durations:
    """Return the expected durations of cases.

    Raises:
        pytest.UsageError: the report given with ``--timings`` cannot be read.
    """
    name = config.stash[IMPLEMENTATION].name
    try:
        return load_durations(name, config.option.timings)
    except ReportError as error:
        raise pytest.UsageError(str(error)) from None


def _select(cases: list[PlannedCase], selection: Selection) -> list[PlannedCase]:
    if patterns := selection.cases:
        cases = [c for c in cases if any(matches(c.id, one) for one in patterns)]
    if selection.one_per_clause:
        return one_per_clause(cases, selection.clauses)
    return cases
