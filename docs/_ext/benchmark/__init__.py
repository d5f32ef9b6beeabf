"""The Sphinx extension that shows what the benchmark has measured.

``shared-tensor-spec bench --json`` writes the files; those that are committed in the
folder ``reports/bench`` are rendered with the machine that they were measured on. Where
there is none, the page says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from docutils import nodes
from elements import missing
from sharedtensor_conformance.bench.results import Results, ResultsError, read_results
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from benchmark import picture, tables
from benchmark.profile import ProfileDirective, SuiteProfileDirective


class BenchmarkDirective(SphinxDirective):
    """``{benchmark} FORM``: the committed results, as a table or a picture."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Render each file; a form that does not exist is an error."""
        render = RENDERERS.get(self.arguments[0])
        if render is None:
            raise self.error(f"results are shown as {', '.join(RENDERERS)} alone")
        folder = Path(self.env.srcdir, self.config.benchmark_results)
        self.env.note_dependency(str(folder))
        found: list[nodes.Node] = []
        for path in sorted(folder.glob("*.json")):
            self.env.note_dependency(str(path))
            found += render(read(path))
        return found or [
            missing("Nothing has been measured yet; no results are committed.")
        ]


def read(path: Path) -> Results:
    """Return the results in a file.

    Raises:
        ExtensionError: it holds none.
    """
    try:
        return read_results(path)
    except ResultsError as error:
        raise ExtensionError(str(error)) from error


RENDERERS: dict[str, Callable[[Results], Sequence[nodes.Node]]] = {
    "circumstances": tables.circumstances,
    "rows": tables.rows,
    "scaling": tables.scaling,
    "plot": picture.drawn,
}


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.setup_extension("elements")
    app.add_config_value("benchmark_results", "reports/bench", "env")
    app.add_directive("benchmark", BenchmarkDirective)
    app.add_directive("benchmark-profile", ProfileDirective)
    app.add_directive("suite-profile", SuiteProfileDirective)
    return {"version": "1", "env_version": 1, "parallel_read_safe": True}
