"""The Sphinx extension that shows committed records by templates.

A record is a JSON file that a script of the repository has written. What a page shows
of it is a matter of words and tables, so a template says it, and no module. A template
gets the records of its directive by their names, and the first of them as `record`.
Where a record has to be compared with something else, `PREPARED` names the function
that does it. What is not committed is said to be missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from clauses.links import Links
from clauses.rendering import rendered
from docutils import nodes
from docutils.parsers.rst import directives
from elements import download, missing
from jinja2 import TemplateRuntimeError
from markupsafe import Markup
from sharedtensor_conformance.report.records import ReportError, read_report
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective
from sphinx.util.osutil import relative_uri

from records import costs, device, fixes, mutants, plot
from records.machines import StateMachinesDirective

PREPARED: Mapping[
    str, Callable[[BuildEnvironment, Mapping[str, Any]], Mapping[str, Any]]
] = {
    "mutants-by-chapter": mutants.prepared,
    "mutants-unproven": mutants.prepared,
    "mutants": mutants.prepared,
    "device-deviations": device.prepared,
    "torch-fixes": fixes.prepared,
    "costs": costs.prepared,
    "cost-peers": costs.prepared_peers,
}
"""What adds to the content of a template, from the environment and the records."""


WRONG = (OSError, ValueError, KeyError, TypeError, AttributeError)
"""What is raised where a file is no record."""


class Record(nodes.General, nodes.Element):
    """The place of a template's text, which needs the addresses of other pages."""


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
        lacking = [file for file in files if file not in found]
        said = [missing(f"{file}: no such run is committed yet.") for file in lacking]
        place = Record(template=template, files=found)
        if "download" in self.options:
            place += [download(file, Path(file).stem) for file in found]
        return [*said, place] if found else [*said]


class FillRecords(SphinxPostTransform):
    """Replaces each `Record` by what its template says."""

    default_priority = 5

    def run(self, **kwargs: object) -> None:
        """Render the records of a page."""
        for place in list(self.document.findall(Record)):
            place.replace_self(self.shown(place))

    def shown(self, place: Record) -> nodes.Node:
        """Return what the template of a place says.

        Raises:
            ExtensionError: a file is no record that the template can show.
        """
        template, files = place["template"], place["files"]
        try:
            records = {Path(file).stem: self.read(file) for file in files}
            prepare = PREPARED.get(template, lambda env, records: {})
            return rendered(
                f"{template}.html",
                record=next(iter(records.values())),
                records=records,
                downloads=self.downloads(place),
                links=Links(self.app, self.env.docname),
                plot=plot.picture_of,
                **prepare(self.env, records),
            )
        except (TemplateRuntimeError, ReportError, *WRONG) as error:
            said = f"{', '.join(files)}: no record that {template}.html shows"
            raise ExtensionError(f"{said}: {error}") from error

    def read(self, file: str) -> Any:
        """Return what a JSON file holds, or the report of a run."""
        path = Path(self.env.srcdir, file)
        if path.suffix == ".jsonl":
            return read_report(path)
        return json.loads(path.read_text(encoding="utf-8"))

    def downloads(self, place: Record) -> dict[str, Markup]:
        """Return the links to the files of a place, by the names of the records."""
        here = self.app.builder.get_target_uri(self.env.docname)
        link = '<a class="reference download internal" download="" href="{}">{}</a>'
        shown = Markup('<code class="download docutils literal">{}</code>')
        found = {}
        for one in place.findall(addnodes.download_reference):
            name = one.astext()
            address = relative_uri(here, f"_downloads/{one['filename']}")
            found[name] = Markup(link).format(address, shown.format(name))
        return found


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.setup_extension("clauses")
    app.add_node(Record)
    app.add_directive("record", RecordDirective)
    app.add_directive("state-machines", StateMachinesDirective)
    app.add_post_transform(FillRecords)
    app.add_css_file("soak.css")
    app.add_css_file("benchmark.css")
    return {"version": "1", "env_version": 1, "parallel_read_safe": True}
