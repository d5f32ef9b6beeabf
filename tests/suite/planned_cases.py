"""Cases as they are before they are run, made for tests of how they are divided."""

from __future__ import annotations

from sharedtensor_conformance.harness.case.axes import Configuration
from sharedtensor_conformance.harness.case.marking import clause
from sharedtensor_conformance.plugin.enumeration import PlannedCase

FORK = Configuration("file_system", "fork")
SPAWN = Configuration("file_system", "spawn")


def planned(
    name: str, where: Configuration = FORK, *, last: bool = False, alone: bool = False
) -> PlannedCase:
    """Return a case of a test of this name.

    Args:
        name: the name of the test.
        where: where it runs.
        last: it runs last.
        alone: it starts its own processes.
    """

    @clause("SHARE-1", runs_last=last, isolated=alone)
    def test() -> None: ...

    test_id = f"test_share.py::{name}"
    return PlannedCase(f"{test_id}[{where.id}]", test_id, test.conformance, where)
