"""The Sphinx extension that shows committed records by templates.

A record is a JSON file that a script of the repository has written. What a page shows
of it is a matter of words and tables, so a template says it, and no module. A template
gets the records of its directive by their names, and the first of them as `record`.
Where a record has to be compared with something else, a function is named here that
does it. What is not committed is said to be missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from clauses.rendering import PREPARED, place
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from records import costs, device, fixes, mutants, plot, recordings


class RecordDirective(SphinxDirective):
    """``{record} TEMPLATE FILE...``: JSON files below ``docs``, by a template."""

    required_arguments = 2
    final_argument_whitespace = True
    option_spec: ClassVar = {"download": directives.flag}

    def run(self) -> list[nodes.Node]:
        """Return a sentence for each missing file, and the place for the others."""
        template, files = self.arguments[0], self.arguments[1].split()
        found = [file for file in files if Path(self.env.srcdir, file).exists()]
        for file in files:
            self.env.note_dependency(str(Path(self.env.srcdir, file)))
        for file in found if "download" in self.options else ():
            self.env.dlfiles.add_file(self.env.docname, file)
        lacking = [file for file in files if file not in found]
        said = [self.missing(file) for file in lacking]
        return [*said, place(template, files=found)] if found else [*said]

    @staticmethod
    def missing(file: str) -> nodes.Node:
        """Return a sentence about a record that is not there."""
        text = f"{file}: no such run is committed yet."
        return nodes.paragraph("", text, classes=["missing"])


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.setup_extension("clauses")
    app.add_directive("record", RecordDirective)
    PREPARED.update(
        {
            "mutants-by-chapter": mutants.prepared,
            "mutants-unproven": mutants.prepared,
            "mutants": mutants.prepared,
            "front-figures": mutants.prepared,
            "device-deviations": device.prepared,
            "torch-fixes": fixes.prepared,
            "costs": costs.prepared,
            "cost-peers": costs.prepared_peers,
            "soak-mixed": lambda _: {"plot": plot},
            "soak-plot": lambda _: {"plot": plot},
        }
    )
    app.connect("build-finished", recordings.write_feed)
    app.add_css_file("soak.css")
    app.add_css_file("benchmark.css")
    return {"version": "1", "env_version": 2, "parallel_read_safe": True}
