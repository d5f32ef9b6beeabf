"""Gives pytest the options, fixtures and hooks of the suite (see ``plugin.hooks``)."""

import pytest
from sharedtensor_conformance.plugin.entry import load


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Load the plugin, whose options pytest then knows before it parses any."""
    load(pluginmanager)
