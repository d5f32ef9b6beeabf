"""What the plugin reads from pytest's item of a case."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from sharedtensor_conformance.harness.marking import Marking
from sharedtensor_conformance.harness.matrix import Configuration


def marking_of(function: object) -> Marking | None:
    """Return what the decorator `clause` says about a test; None for other tests."""
    found: Marking | None = getattr(function, "conformance", None)
    return found


def configuration_of(item: pytest.Item) -> Configuration:
    """Return where a case runs."""
    assert isinstance(item, pytest.Function)
    found = item.callspec.params["configuration"]
    assert isinstance(found, Configuration)
    return found


def case_id(item: pytest.Item) -> str:
    """Return the id under which reports know a case."""
    assert isinstance(item, pytest.Function)
    parameters = f"[{item.callspec.id}]" if hasattr(item, "callspec") else ""
    return f"{item.path.name}::{item.originalname}{parameters}"


def is_case(item: pytest.Item) -> bool:
    """Return whether pytest's item is a case of the suite."""
    return marking_of(getattr(item, "function", None)) is not None


def id_in_report(nodeid: str) -> str:
    """Return the id under which reports know what pytest knows by `nodeid`."""
    path, mark, rest = nodeid.partition("::")
    return f"{PurePosixPath(path).name}{mark}{rest}"
