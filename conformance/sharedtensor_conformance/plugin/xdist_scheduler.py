"""Which worker of pytest-xdist runs which case.

The cases of a batch share their processes, and those that run last judge what all of
them left, so one worker has to run them all, in order. Cases with processes of their
own can run anywhere. xdist's own grouping writes the group into the ids of the tests,
which newer versions of pytest do not let it do; here the group is found from the id.

A worker begins a case when it knows the next one, so a long case always has another
behind it that no other worker can take. That should not be a long one too.
"""

from __future__ import annotations

from typing import Any

from xdist.scheduler.loadscope import LoadScopeScheduling

from sharedtensor_conformance.plugin.batching import groups_of

SOON = 1.0
"""Seconds in which a worker will be free: it is given the longest batch then."""


class BatchScheduling(LoadScopeScheduling):
    """Gives the cases of a batch to one worker, those of the longest batches first."""

    def __init__(self, config: Any, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # they are in order already
        self.groups = groups_of(config, self.numnodes)

    def _split_scope(self, nodeid: str) -> str:
        """Return what the cases that one worker has to run have in common."""
        return self.groups.name(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        """Give a worker the longest batch; the shortest where it is busy for long."""
        if self._seconds_left(node) > SOON:
            shortest = next(reversed(self.workqueue))
            self.workqueue.move_to_end(shortest, last=False)
        super()._assign_work_unit(node)

    def _seconds_left(self, node: Any) -> float:
        """Return how long the cases take that a worker has not finished."""
        return sum(
            self.groups.seconds_of_case(nodeid)
            for unit in self.assigned_work.get(node, {}).values()
            for nodeid, finished in unit.items()
            if not finished
        )
