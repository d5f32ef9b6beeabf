"""Assigns cases to the workers of pytest-xdist.

The cases of a batch share their processes, and the cases that run last judge what all
of them left behind. So one worker has to run all cases of a batch, in order. Cases with
their own processes can run on any worker. xdist's own grouping writes the group into
the ids of tests, which newer versions of pytest do not permit. Here, the group is
computed from the id.

A worker starts a case only when it has the next one. So behind a long case there is
always a case that no other worker can take, and that one should be short.
"""

from __future__ import annotations

from typing import Any

from xdist.scheduler.loadscope import LoadScopeScheduling

from sharedtensor_conformance.plugin.batching import groups_of

SOON_SECONDS = 1.0
"""A worker that will be free within this time, in seconds, gets the longest batch."""


class BatchScheduling(LoadScopeScheduling):
    """Gives the cases of a batch to one worker, those of the longest batches first."""

    def __init__(self, config: Any, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # they are already in order
        self.groups = groups_of(config, self.numnodes)

    def _split_scope(self, nodeid: str) -> str:
        """Return the name of the group of a case."""
        return self.groups.name(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        """Give a worker the longest batch, or the shortest if it is busy for long."""
        if self._seconds_left(node) > SOON_SECONDS:
            shortest = next(reversed(self.workqueue))
            self.workqueue.move_to_end(shortest, last=False)
        super()._assign_work_unit(node)

    def _seconds_left(self, node: Any) -> float:
        """Return the duration of the unfinished cases of a worker."""
        return sum(
            self.groups.seconds_of_case(nodeid)
            for unit in self.assigned_work.get(node, {}).values()
            for nodeid, finished in unit.items()
            if not finished
        )
