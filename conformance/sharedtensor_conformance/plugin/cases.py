"""Reads the properties of a case from pytest's item."""

from __future__ import annotations

import re

import pytest

from sharedtensor_conformance.harness.case.axes import Configuration
from sharedtensor_conformance.harness.case.marking import Marking

BATCH = pytest.StashKey[int]()
BATCH_SUFFIX = re.compile(r"@(\d+)(?=[-\]])")
"""The suffix in pytest's name of a case that also runs in another batch."""


def marking_of(function: object) -> Marking | None:
    """Return what the decorator `clause` stored in a test; None without a decorator."""
    found: Marking | None = getattr(function, "conformance", None)
    return found


def configuration_of(item: pytest.Item) -> Configuration:
    """Return the configuration of a case."""
    assert isinstance(item, pytest.Function)
    found = item.callspec.params["configuration"]
    assert isinstance(found, Configuration)
    return found


def case_id(item: pytest.Item) -> str:
    """Return the id of a case in reports."""
    assert isinstance(item, pytest.Function)
    parameters = f"[{item.callspec.id}]" if hasattr(item, "callspec") else ""
    return f"{item.path.name}::{item.originalname}{BATCH_SUFFIX.sub('', parameters)}"


def is_case(item: pytest.Item) -> bool:
    """Return whether pytest's item is a case of the suite."""
    return marking_of(getattr(item, "function", None)) is not None


def batch_in_nodeid(nodeid: str) -> int | None:
    """Return the batch number in a node id, or None if there is none."""
    found = BATCH_SUFFIX.search(nodeid)
    return int(found[1]) if found else None


def batch_of(item: pytest.Item) -> int:
    """Return the number of the batch in which a case runs."""
    return item.stash.get(BATCH, 0)
