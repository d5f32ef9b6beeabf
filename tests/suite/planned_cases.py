"""Cases as they are before they are run, made for tests of how they are divided."""

from __future__ import annotations

from typing import Any

from sharedtensor_conformance.harness.case.axes import Configuration
from sharedtensor_conformance.harness.case.marking import clause
from sharedtensor_conformance.plugin.enumeration import PlannedCase

FORK = Configuration("file_system", "fork")
SPAWN = Configuration("file_system", "spawn")


def planned(
    name: str,
    where: Configuration = FORK,
    clauses: tuple[str, ...] = ("SHARE-1",),
    **details: Any,
) -> PlannedCase:
    """Return a case of a test of this name; `details` are those of its decorator."""

    @clause(*clauses, **details)
    def test() -> None: ...

    test_id = f"test_share.py::{name}"
    return PlannedCase(f"{test_id}[{where.id}]", test_id, test.conformance, where)
