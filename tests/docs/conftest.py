"""The site is tested where Sphinx is installed: the extra ``docs`` brings it."""

from importlib import import_module

import pytest
import tiny_project


def pytest_configure(config):
    config.addinivalue_line("markers", "sphinx: needs Sphinx (the nox session `docs`)")


def pytest_collection_modifyitems(items):
    """Mark what builds a site."""
    for item in items:
        if "extension" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.sphinx)


@pytest.fixture(scope="session")
def extension():
    """Import a module of the site's extensions."""
    reason = "Sphinx is not installed: pip install -e '.[docs]'"
    pytest.importorskip("sphinx", reason=reason)
    pytest.importorskip("myst_parser", reason=reason)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tiny_project.EXTENSIONS)
        yield import_module


@pytest.fixture(scope="session")
def build(extension):
    """Write the tiny project, with some files changed, at a root and build its site."""

    def written_and_built(root, changed=None):
        tiny_project.write_project(root, changed or {})
        return tiny_project.build(root)

    return written_and_built


@pytest.fixture
def site_of(build, tmp_path):
    """Build a site of one's own, with some of the project's files changed."""
    return lambda changed=None: build(tmp_path, changed)


@pytest.fixture(scope="session")
def site(build, tmp_path_factory):
    """The site of the project as it is; only to be read."""
    return build(tmp_path_factory.mktemp("site"))
