"""The batches of a run under pytest-xdist, in its controller and in each worker.

All of them compute the same batches, because they use the same plan and durations.
"""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from sharedtensor_conformance.plugin.batches import Batches, batches_of
from sharedtensor_conformance.plugin.enumeration import (
    PlannedCase,
    batch_in_nodeid,
    id_in_report,
)
from sharedtensor_conformance.plugin.plan import durations_of, plan_of
from sharedtensor_conformance.plugin.state import RUNNER

GROUPS = pytest.StashKey["Groups"]()


class Groups:
    """The groups of cases that have to run on the same worker, with their durations.

    Args:
        config: pytest's configuration, of the controller or a worker.
        workers: how many cases run at the same time.
    """

    def __init__(self, config: pytest.Config, workers: int) -> None:
        runner = config.stash[RUNNER]
        self._chosen = plan_of(config).chosen
        self._seconds = durations_of(config).seconds

        def cause(case: PlannedCase) -> Hashable | None:
            if runner.all_cases:
                return None
            known = runner.known.entry_keys(case.as_case(), case.configuration.id)
            return known[0] if known else None

        cases = list(self._chosen.values())
        self.batches: Batches = batches_of(cases, workers, self._seconds, cause)

    def name(self, nodeid: str) -> str:
        """Return the name of the group of a case.

        A case that can run on any worker is a group of its own, named by its node id.
        """
        case = self._planned(nodeid)
        if case is None or case.marking.isolated:
            return nodeid
        if case.configuration.why_not:
            return "without processes"
        return f"{case.configuration.id}, batch {self._number(case, nodeid)}"

    def seconds(self, nodeid: str) -> float:
        """Return the duration of all cases in the group of this case."""
        case = self._planned(nodeid)
        if case is None:
            return 0.0
        if not case.shares_processes:
            return self._seconds(case)
        taken = self.batches.seconds[case.configuration.id]
        return taken[self._number(case, nodeid)]

    def seconds_of_case(self, nodeid: str) -> float:
        """Return the duration of this case."""
        case = self._planned(nodeid)
        return 0.0 if case is None else self._seconds(case)

    def _planned(self, nodeid: str) -> PlannedCase | None:
        return self._chosen.get(id_in_report(nodeid))

    def _number(self, case: PlannedCase, nodeid: str) -> int:
        named = batch_in_nodeid(nodeid)
        return self.batches.number_of(case) if named is None else named


def groups_of(config: pytest.Config, workers: int) -> Groups:
    """Return the groups of a run; they are made at the first call."""
    if GROUPS not in config.stash:
        config.stash[GROUPS] = Groups(config, workers)
    return config.stash[GROUPS]


def workers_of(config: pytest.Config) -> int:
    """Return the number of xdist workers if this process is a worker, else 0."""
    count: int = getattr(config, "workerinput", {}).get("workercount", 0)
    return count
