"""Which worker of pytest-xdist runs which case.

The cases of a configuration share their processes, and those that run last judge what
all of them left, so one worker has to run them all, in order. Cases with processes of
their own can run anywhere. xdist's own grouping writes the group into the ids of the
tests, which newer versions of pytest do not let it do; here the group is found from the
id.
"""

from __future__ import annotations

import importlib
from functools import cache
from importlib.util import find_spec
from pathlib import PurePosixPath
from typing import Any

from xdist.scheduler.loadscope import LoadScopeScheduling

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.harness.matrix import Configuration


class ConfigurationScheduling(LoadScopeScheduling):
    """Gives the cases of a configuration to one worker."""

    def __init__(self, config: Any, log: Any, implementation: Implementation) -> None:
        super().__init__(config, log)
        self.configurations = configuration_ids(implementation)

    def _split_scope(self, nodeid: str) -> str:
        """Return what the cases that one worker has to run have in common."""
        return group_of(nodeid, self.configurations)


def configuration_ids(implementation: Implementation) -> list[str]:
    """Return the ids of all configurations, the longest first."""
    found = {
        Configuration(strategy, method, device).id
        for strategy in implementation.strategies
        for method in implementation.start_methods
        for device in ("cpu", *implementation.devices)
    }
    return sorted(found, key=len, reverse=True)


def group_of(nodeid: str, configurations: list[str]) -> str:
    """Return the configuration of a case, or its own id if it is isolated."""
    file, _, test = nodeid.rpartition("::")
    name, _, parameters = test.partition("[")
    if is_isolated(PurePosixPath(file).stem, name):
        return nodeid
    for id in configurations:
        if parameters.startswith((f"{id}-", f"{id}]")):
            return id
    return "without processes"


@cache
def is_isolated(module: str, name: str) -> bool:
    """Return whether a test starts all its processes, or is not one of this suite."""
    if find_spec(f"sharedtensor_conformance.chapters.{module}") is None:
        return True
    tests = importlib.import_module(f"sharedtensor_conformance.chapters.{module}")
    return bool(getattr(tests, name).conformance.isolated)
