"""The Sphinx extension that shows what the soak runs have recorded.

The scripts in ``soak/`` write one JSON file each; those that are committed are
rendered as they are, with the command that repeats the run. A run that has not been
recorded is said to be missing, one that did not hold shows its sentence.

`records` reads the files, `tables` renders them, and `plot` draws the rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from soak import plot, tables
from soak.records import Records


class SoakDirective(SphinxDirective):
    """``{soak} KIND``: what was recorded of runs of one kind."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Render the records; a kind that does not exist is an error."""
        render = RENDERERS.get(self.arguments[0])
        if render is None:
            raise self.error(f"there are records of {', '.join(RENDERERS)} alone")
        return render(Records(self.env))


RENDERERS: dict[str, Callable[[Records], list[nodes.Node]]] = {
    "overview": tables.overview,
    "rounds": tables.rounds,
    "plot": plot.rounds,
    "kills": tables.kills,
    "killed-runs": tables.killed_runs,
    "histories": tables.histories,
    "hostile": tables.hostile,
    "mixed": tables.mixed,
    "mixed-plot": plot.mixed,
    "loaded": partial(tables.runs, "loaded"),
    "shuffled": partial(tables.runs, "shuffled"),
}


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.setup_extension("elements")
    app.add_directive("soak", SoakDirective)
    app.add_css_file("soak.css")
    return {"version": "1", "env_version": 1, "parallel_read_safe": True}
