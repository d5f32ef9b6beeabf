"""Gives pytest the options, fixtures and hooks of the suite (see ``plugin.py``)."""

import pytest
from sharedtensor_conformance.entry import load


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Load the plugin, whose options pytest then knows before it parses any."""
    load(pluginmanager)
