"""Lets ``pytest --pyargs sharedtensor_conformance`` know the suite's options.

pytest reads the ``conftest.py`` of a path on the command line before it parses options,
but not that of a package named with ``--pyargs``. This module is the entry point that
pytest loads in every run of an environment where the suite is installed; unless the
command line names the suite it does nothing, so no option of the suite can clash with
one of somebody else's.
"""

from __future__ import annotations

import pytest

PACKAGE = "sharedtensor_conformance"
PLUGIN = f"{PACKAGE}.plugin.hooks"


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Load the suite's plugin where the command line names the suite."""
    if any(map(names_the_suite, args)):
        load(early_config.pluginmanager)


def names_the_suite(argument: str) -> bool:
    """Return whether an argument of pytest names the suite as a package."""
    return argument.partition("::")[0].split(".")[0] == PACKAGE


def load(pluginmanager: pytest.PytestPluginManager) -> None:
    """Load the suite's plugin, once."""
    if not pluginmanager.has_plugin(PLUGIN):
        pluginmanager.import_plugin(PLUGIN)
