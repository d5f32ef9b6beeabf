"""The site is tested where Sphinx is installed: the extra ``docs`` brings it."""

import sys

import pytest
import tiny_project


@pytest.fixture
def site_of(tmp_path, monkeypatch):
    """Build a tiny site with some of its files changed."""
    reason = "Sphinx is not installed: pip install -e '.[docs]'"
    pytest.importorskip("sphinx", reason=reason)
    pytest.importorskip("myst_parser", reason=reason)
    monkeypatch.syspath_prepend(tiny_project.EXTENSIONS)

    def build(changed=None):
        tiny_project.write_project(tmp_path, changed or {})
        return tiny_project.build(tmp_path)

    yield build
    for name in [name for name in sys.modules if name.partition(".")[0] == "clauses"]:
        del sys.modules[name]
