"""Which worker of pytest-xdist runs which case.

The cases of a batch share their processes, and those that run last judge what all of
them left, so one worker has to run them all, in order. Cases with processes of their
own can run anywhere. xdist's own grouping writes the group into the ids of the tests,
which newer versions of pytest do not let it do; here the group is found from the id.
"""

from __future__ import annotations

from typing import Any

from xdist.scheduler.loadscope import LoadScopeScheduling

from sharedtensor_conformance.plugin.batching import groups_of


class BatchScheduling(LoadScopeScheduling):
    """Gives the cases of a batch to one worker, those of the longest batches first."""

    def __init__(self, config: Any, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # they are in order already
        self.groups = groups_of(config, self.numnodes)

    def _split_scope(self, nodeid: str) -> str:
        """Return what the cases that one worker has to run have in common."""
        return self.groups.name(nodeid)
