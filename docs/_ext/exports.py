"""The specification and the verdicts in other forms, for people and for programs.

One page is for those who print or search the specification whole. ``clauses.json`` is
what ``shared-tensor-spec clauses --format json`` prints, with the page of each clause.
``matrix.json`` and ``matrix.csv`` are the matrix; ``implementations/NAME.json`` is one
column of it.
``llms.txt`` lists the pages in the form of llmstxt.org, so that a language model finds
the text of a clause at once.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from clauses.domain import NAME, ONE_PAGE
from clauses.outcomes import outcome_in, words_in
from clauses.rendering import Place, written
from clauses.reports import Column
from clauses.settings import broken_with
from docutils import nodes
from sharedtensor_conformance.clauses import Clause
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
            if place["template"] == "clause-strip":
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
    """Write the other forms beside the pages."""
    if error or app.builder.format != "html":
        return
    domain = app.env.domains[NAME]
    clauses, columns = domain.clauses(), domain.backing.columns
    address = app.builder.get_target_uri
    pages = {one.id: address(domain.clause_page(one.id)) for one in clauses}
    verdicts = {
        f"implementations/{column.slug}.json": verdicts_of(column, pages)
        for column in columns
    }
    records = {
        "clauses.json": [
            {**as_data(one, domain.backing.evidence), "page": pages[one.id]}
            for one in clauses
        ],
        "matrix.json": [*verdicts.values()],
        **verdicts,
    }
    forms = {name: json.dumps(one, indent=1) + "\n" for name, one in records.items()}
    forms["matrix.csv"] = as_table(columns, clauses)
    forms["llms.txt"] = listed(app, {one: pages[one.id] for one in clauses})
    for name, text in forms.items():
        path = Path(app.outdir, name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def verdicts_of(column: Column, pages: Mapping[str, str]) -> dict[str, Any]:
    """Return what the reports on an implementation say of each clause.

    Args:
        pages: the page of each clause.
    """
    return {
        "name": column.name,
        "version": column.version,
        "day": column.day,
        "clauses": {
            id: {**verdict_on(column, id), "page": page} for id, page in pages.items()
        },
    }


def verdict_on(column: Column, id: str) -> dict[str, Any]:
    """Return the verdict on a clause; of a broken one where it is broken, and why."""
    outcome, judgement = outcome_in(column, id), column.judgements.get(id)
    said: dict[str, Any] = {"outcome": outcome.value}
    if judgement and outcome.breaks:
        said["broken_with"] = broken_with(judgement)
        said["causes"] = [one.cause for one in judgement.known]
    return said


def as_table(columns: list[Column], clauses: Iterable[Clause]) -> str:
    """Return the matrix as comma-separated values: a row for each clause."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    names = [column.name for column in columns]
    table.writerow(["clause", "title", "level", "profile", *names])
    for one in clauses:
        verdicts = [words_in(column, one.id) for column in columns]
        table.writerow([one.id, one.title, one.level, one.profile, *verdicts])
    return text.getvalue()


def listed(app: Sphinx, clauses: Mapping[Clause, str]) -> str:
    """Return ``llms.txt``: what there is, the pages by section, and the clauses.

    Args:
        clauses: the clauses, each with its page.
    """
    titles = {name: title.astext() for name, title in app.env.titles.items()}
    return written(
        "llms.txt",
        project=app.config.project,
        clauses=clauses,
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
