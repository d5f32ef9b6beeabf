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
from sharedtensor_bench.results import Results, ResultsError, read_results
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from benchmark import downloads, tables
from benchmark.beside import beside
from benchmark.peers import PeersDirective


class BenchmarkDirective(SphinxDirective):
    """``{benchmark} FORM``: the committed results, as a picture or tables."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Render the files; a form that does not exist is an error."""
        render = RENDERERS.get(self.arguments[0])
        if render is None:
            raise self.error(f"results are shown as {', '.join(RENDERERS)} alone")
        paths = files(self.env.srcdir, self.config.benchmark_results)
        self.env.note_dependency(
            str(Path(self.env.srcdir, self.config.benchmark_results))
        )
        for path in paths:
            self.env.note_dependency(str(path))
        return [*render([read(path) for path in paths])] or [
            missing("Nothing has been measured yet; no results are committed.")
        ]


def files(source: str | Path, folder: str) -> list[Path]:
    """Return the committed files, in the order of their names."""
    return sorted(Path(source, folder).glob("*.json"))


def write_data(app: Sphinx, error: Exception | None) -> None:
    """Write the figures as data, unless the build has failed."""
    if error is None:
        paths = files(app.srcdir, app.config.benchmark_results)
        downloads.write(app, [read(path) for path in paths])


def read(path: Path) -> Results:
    """Return the results in a file.

    Raises:
        ExtensionError: it holds none.
    """
    try:
        return read_results(path)
    except ResultsError as error:
        raise ExtensionError(str(error)) from error


Renderer = Callable[[Sequence[Results]], Sequence[nodes.Node]]


def of_each(render: Callable[[Results], Sequence[nodes.Node]]) -> Renderer:
    """Return what renders the files one after the other."""
    return lambda found: [node for results in found for node in render(results)]


RENDERERS: dict[str, Renderer] = {
    "beside": beside,
    "data": downloads.links,
    "circumstances": of_each(tables.circumstances),
    "rows": of_each(tables.rows),
    "scaling": of_each(tables.scaling),
}


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.setup_extension("elements")
    app.add_config_value("benchmark_results", "reports/bench", "env")
    app.add_directive("benchmark", BenchmarkDirective)
    app.add_directive("benchmark-peers", PeersDirective)
    app.add_css_file("benchmark.css")
    app.connect("build-finished", write_data)
    return {"version": "1", "env_version": 1, "parallel_read_safe": True}
