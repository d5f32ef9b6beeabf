"""The batches of a run under pytest-xdist: who runs which case, and in which order.

Controller and workers ask alike, and come to the same batches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

import pytest

from sharedtensor_conformance.harness.marking import Marking
from sharedtensor_conformance.plugin.batches import Batches, batches_of
from sharedtensor_conformance.plugin.cases import BATCH, batch_named, case_id
from sharedtensor_conformance.plugin.enumeration import Axis, PlannedCase, id_in_report
from sharedtensor_conformance.plugin.plan import Plan, durations_of, plan_of
from sharedtensor_conformance.plugin.state import RUNNER, SELECTION

GROUPS = pytest.StashKey["Groups"]()


class Groups:
    """Which cases one worker has to run, and how long they take.

    Args:
        config: pytest's configuration, of the controller or a worker.
        workers: how many run cases at the same time.
    """

    def __init__(self, config: pytest.Config, workers: int) -> None:
        runner = config.stash[RUNNER]
        implementation = runner.implementation
        self.plan: Plan = plan_of(config, config.stash[SELECTION], implementation)
        self._seconds = durations_of(config, implementation).seconds

        def cause(case: PlannedCase) -> Hashable | None:
            if runner.all_cases:
                return None
            known = runner.known.places(case.as_case(), case.configuration.id)
            return known[0] if known else None

        cases = list(self.plan.chosen.values())
        self.batches: Batches = batches_of(cases, workers, self._seconds, cause)

    def name(self, nodeid: str) -> str:
        """Return what the cases have in common that one worker has to run.

        A test that can run anywhere has its own node id in common with no other.
        """
        case = self._planned(nodeid)
        if case is None or case.marking.isolated:
            return nodeid
        if case.configuration.why_not:
            return "without processes"
        return f"{case.configuration.id}, batch {self._number(case, nodeid)}"

    def seconds(self, nodeid: str) -> float:
        """Return how long all cases take that one worker has to run with this one."""
        case = self._planned(nodeid)
        if case is None:
            return 0.0
        if not case.shares_processes:
            return self._seconds(case)
        taken = self.batches.seconds[case.configuration.id]
        return taken[self._number(case, nodeid)]

    def seconds_of_case(self, nodeid: str) -> float:
        """Return how long this case takes alone."""
        case = self._planned(nodeid)
        return 0.0 if case is None else self._seconds(case)

    def in_order(self, items: Sequence[pytest.Item]) -> list[pytest.Item]:
        """Return the cases with those of the longest batch first.

        Each learns which batch it is in.
        """
        for item in items:
            case = self.plan.chosen[case_id(item)]
            if case.shares_processes:
                item.stash[BATCH] = self._number(case, item.nodeid)
        groups: defaultdict[str, list[pytest.Item]] = defaultdict(list)
        for item in items:
            groups[self.name(item.nodeid)].append(item)
        longest_first = sorted(
            groups.values(), key=lambda group: -self.seconds(group[0].nodeid)
        )
        return [item for group in longest_first for item in group]

    def _planned(self, nodeid: str) -> PlannedCase | None:
        return self.plan.chosen.get(id_in_report(nodeid))

    def _number(self, case: PlannedCase, nodeid: str) -> int:
        named = batch_named(nodeid)
        return self.batches.number_of(case) if named is None else named


def groups_of(config: pytest.Config, workers: int) -> Groups:
    """Return the groups of cases of a run; they are made once."""
    if GROUPS not in config.stash:
        config.stash[GROUPS] = Groups(config, workers)
    return config.stash[GROUPS]


def workers_of(config: pytest.Config) -> int:
    """Return how many workers pytest-xdist has, as one of them knows it; else 0."""
    count: int = getattr(config, "workerinput", {}).get("workercount", 0)
    return count


def in_each_batch(
    config: pytest.Config, marking: Marking, axis: Axis
) -> tuple[Sequence[Sequence[Any]], list[str]]:
    """Return the rows of a test's axis and their ids, once for each batch with them."""
    workers = workers_of(config)
    if not (workers and marking.runs_last and "configuration" in axis.names):
        return axis.rows, axis.ids
    batches = groups_of(config, workers).batches
    place = axis.names.index("configuration")
    found = [
        (row, f"{id}@{number}" if number else id)
        for id, row in zip(axis.ids, axis.rows, strict=True)
        for number in range(batches.count(row[place]))
    ]
    return [row for row, _ in found], [id for _, id in found]
