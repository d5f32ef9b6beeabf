"""Loads the suite's options for ``pytest --pyargs sharedtensor_conformance``.

pytest reads the ``conftest.py`` of a path on the command line before it parses options,
but not that of a package named with ``--pyargs``. This module is a pytest entry point,
so pytest loads it in every run in an environment where the suite is installed. It does
nothing unless the command line names the suite, so that the options of the suite cannot
clash with those of other plugins.
"""

from __future__ import annotations

import pytest

PACKAGE = "sharedtensor_conformance"
PLUGIN = f"{PACKAGE}.plugin.hooks"


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Load the suite's plugin if the command line names the suite."""
    if any(map(names_the_suite, args)):
        load(early_config.pluginmanager)


def names_the_suite(argument: str) -> bool:
    """Return whether a command line argument names the package of the suite."""
    return argument.partition("::")[0].split(".")[0] == PACKAGE


def load(pluginmanager: pytest.PytestPluginManager) -> None:
    """Load the suite's plugin, once."""
    if not pluginmanager.has_plugin(PLUGIN):
        pluginmanager.import_plugin(PLUGIN)
