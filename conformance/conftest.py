"""Gives pytest the options, fixtures and hooks of the suite (see ``plugin.hooks``)."""

from pathlib import Path

import pytest
from sharedtensor_conformance.plugin import entry

HERE = Path(__file__).parent
IMPORTED = Path(entry.__file__).resolve().parents[2]


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Load the plugin, whose options pytest then knows before it parses any.

    Raises:
        UsageError: another copy of the suite is installed, and pytest has imported a
            part of it already. The tests in this folder belong to this copy.
    """
    if not IMPORTED.samefile(HERE):
        raise pytest.UsageError(
            f"the suite that is installed, in {IMPORTED}, is not the one in {HERE}: "
            f"run `pytest --pyargs {entry.PACKAGE}` instead of `pytest {HERE.name}`, "
            f'or install the checkout by `pip install -e ".[conformance]"`'
        )
    entry.load(pluginmanager)
