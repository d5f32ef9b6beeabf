"""What the tests of the suite run it with."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from suites import Suite, serving


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Path]:
    """The socket of a server that runs the suite."""
    with tempfile.TemporaryDirectory(prefix="sandbox-") as folder:
        path = Path(folder, "socket")
        with serving(path):
            yield path


@pytest.fixture
def suite(sandbox: Path) -> Iterator[Suite]:
    """The suite, to be called with its options, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="suite-") as folder:
        yield Suite(sandbox, Path(folder))
