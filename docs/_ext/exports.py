"""The specification in other forms: on one page, as JSON, and as a list for programs.

One page is for those who print or search it whole. ``clauses.json`` is what
``shared-tensor-spec clauses --format json`` prints. ``llms.txt`` lists the pages in the
form of llmstxt.org, so that a language model finds the text of a clause at once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clauses.domain import NAME, ONE_PAGE
from clauses.rendering import Place, written
from docutils import nodes
from sharedtensor_conformance.cli.clauses import as_data
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective


class Whole(nodes.General, nodes.Element):
    """The place of the pages that are put into one."""


class WholeDirective(SphinxDirective):
    """``{one-page}``: the pages that its body names, one after the other."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        pages = [f"spec/{name}" for name in self.content if name]
        self.env.metadata[self.env.docname][ONE_PAGE] = pages
        return [Whole(pages=pages)]


class PutTogether(SphinxPostTransform):
    """Copies the pages into one, before tables are filled in and links resolved."""

    default_priority = 3

    def run(self, **kwargs: object) -> None:
        for place in list(self.document.findall(Whole)):
            sections = [self._copied(page) for page in place["pages"]]
            place.replace_self(sections)

    def _copied(self, page: str) -> nodes.Node:
        section = self.env.get_doctree(page).next_node(nodes.section).deepcopy()
        for place in list(section.findall(Place)):
            if place["template"] == "clause-backing":
                place.parent.remove(place)
        for node in section.findall(nodes.Element):
            if "refdoc" in node:
                node["refdoc"] = self.env.docname
            node["ids"] = [self._renamed(page, id) for id in node["ids"]]
            if "refid" in node:
                node["refid"] = self._renamed(page, node["refid"])
            node["names"] = []
        return section

    def _renamed(self, page: str, id: str) -> str:
        """Return an id that is used once: that of a clause or a promise is, already."""
        return id if _defined(self.env, id) else f"{Path(page).name}-{id}"


def _defined(env: Any, id: str) -> bool:
    data = env.domaindata[NAME]
    return id in data["clause"] or id in data["promise"]


def write_exports(app: Sphinx, error: Exception | None) -> None:
    """Write ``clauses.json`` and ``llms.txt`` beside the pages."""
    if error or app.builder.format != "html":
        return
    found = app.env.domaindata[NAME]["clause"].values()
    evidence = app.env.domains[NAME].backing.evidence
    clauses = [as_data(definition.content, evidence) for definition in found]
    texts = {"clauses.json": json.dumps(clauses, indent=1) + "\n"}
    texts["llms.txt"] = listed(app)
    for name, text in texts.items():
        Path(app.outdir, name).write_text(text, encoding="utf-8")


def listed(app: Sphinx) -> str:
    """Return ``llms.txt``: what there is, then the pages by section."""
    titles = {name: title.astext() for name, title in app.env.titles.items()}
    return written(
        "llms.txt",
        project=app.config.project,
        sections=app.env.toctree_includes,
        titles=titles,
        address=app.builder.get_target_uri,
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive and what is written at the end."""
    app.setup_extension("clauses")
    app.add_node(Whole)
    app.add_directive("one-page", WholeDirective)
    app.add_post_transform(PutTogether)
    app.connect("build-finished", write_exports)
    return {"version": "1", "parallel_read_safe": True}
