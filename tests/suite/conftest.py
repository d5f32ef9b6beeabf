"""What the tests of the suite run it with."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from suites import Suite, Ward


@pytest.fixture
def ward() -> Iterator[Ward]:
    """A ward, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="ward-") as folder:
        yield Ward(Path(folder))


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    """The suite, to be called with its options."""
    return Suite(tmp_path)
