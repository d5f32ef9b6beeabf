"""Fills in what needs all clauses: the index, the matrix, the answers to a promise."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from docutils import nodes
from elements import between, missing, table
from sharedtensor_conformance.adapter import operations_of
from sharedtensor_conformance.clauses import Clause
from sharedtensor_conformance.evidence import citing
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging

from clauses import boxes, field, implementations, matrix_page, releases_page
from clauses.changes import changes
from clauses.deviation_pages import FOLDER
from clauses.deviations import PROJECTS
from clauses.domain import NAME, reference
from clauses.findings import findings
from clauses.links import Links
from clauses.rendering import rendered
from clauses.reports import Shown

logger = logging.getLogger(__name__)


class Table(nodes.General, nodes.Element):
    """The place of a table that is filled in when all pages have been read."""


class FillTables(SphinxPostTransform):
    """Replaces each `Table` by its content, before references are resolved."""

    default_priority = 5

    def run(self, **kwargs: object) -> None:
        makers: dict[str, Any] = {
            "clause-index": self.index,
            "clause-matrix": self.matrix,
            "field": self.field,
            "clause-changes": self.changes,
            "findings": self.findings,
            "profiles": self.profiles,
            "answers": self.answers,
            "releases": self.releases,
        }
        makers |= dict.fromkeys(implementations.PARTS, self.implementation)
        for place in list(self.document.findall(Table)):
            place.replace_self(makers[place["kind"]](place))

    def clauses(self) -> list[Clause]:
        """Return all clauses, in the order of the configured chapters."""
        chapters = list(self.config.clauses_chapters)
        found = self.env.domaindata[NAME]["clause"].values()
        clauses = [definition.content for definition in found]
        chapters += sorted({clause.chapter for clause in clauses} - set(chapters))
        return sorted(clauses, key=lambda c: (chapters.index(c.chapter), c.order))

    def index(self, place: Table) -> nodes.Node:
        """Return the table of all clauses."""
        evidence = self.env.clauses_evidence
        return self.of_clauses("clause-index", evidence=evidence, citing=citing)

    def of_clauses(self, template: str, **content: Any) -> nodes.Node:
        """Return what a template makes of all clauses."""
        content |= {"clauses": self.clauses(), "links": self.addresses()}
        return rendered(f"{template}.html", **content)

    def addresses(self) -> Links:
        """Return the addresses for this page."""
        return Links(self.app, self.env.docname)

    def matrix(self, place: Table) -> nodes.Node:
        """Return the matrix of clauses by implementations."""
        columns = self.env.clauses_columns
        if not columns:
            return missing("No report is committed, so there is nothing to show.")
        return matrix_page.matrix(columns, *self.everything())

    def field(self, place: Table) -> nodes.Node:
        """Return the picture of the configured implementations."""
        shown = self.config.clauses_implementations
        columns = [c for c in self.env.clauses_columns if c.name in shown]
        if not columns:
            return missing("No report is committed, so there is nothing to show.")
        return field.field(columns, *self.everything())

    def implementation(self, place: Table) -> list[nodes.Node]:
        """Return a section of the page of an implementation."""
        columns = {column.name: column for column in self.env.clauses_columns}
        column = columns.get(place["name"])
        if column is None:
            return [missing(f"No report is committed of {place['name']}.")]
        page = implementations.Page(column, *self.everything(), self.env.docname)
        return page.part(place["kind"])

    def releases(self, place: Table) -> list[nodes.Node]:
        """Return what releases of a library make of the clauses that one breaks."""
        found = self.env.clauses_releases.get(place["name"], [])
        return releases_page.shown(self.clauses(), found, self.addresses())

    def everything(self) -> tuple[list[Clause], dict[str, str], Links]:
        """Return all clauses, the titles of chapters, and addresses for this page."""
        return self.clauses(), self.titles(), self.addresses()

    def titles(self) -> dict[str, str]:
        """Return the titles of the chapters' pages, by the names of the chapters."""
        defined = self.env.domaindata[NAME]["clause"].values()
        return {
            one.content.chapter: self.env.titles[one.docname].astext()
            for one in defined
        }

    def changes(self, place: Table) -> nodes.Node:
        """Return the table of the clauses whose hash was another one before."""
        found = changes(self.clauses(), self.env.clauses_earlier)
        return self.of_clauses("clause-changes", changes=found)

    def findings(self, place: Table) -> nodes.Node:
        """Return the table of the deviations of all projects."""
        known = self.env.clauses_deviations
        found = findings(known, self.config.clauses_chapters)
        projects = {name: PROJECTS[name] for name in known}
        content = {"findings": found, "projects": projects, "folder": FOLDER}
        return self.of_clauses("findings", **content)

    def profiles(self, place: Table) -> nodes.Node:
        """Return the table of the profiles: claim, needs, operations, clauses."""
        content = {"profiles": place["profiles"], "operations_of": operations_of}
        return self.of_clauses("profiles", **content)

    def answers(self, place: Table) -> nodes.Node:
        """Return the clauses that answer a promise, or why none does."""
        promise, reason = place["promise"], place["reason"]
        found = [c for c in self.clauses() if promise in c.promises]
        if bool(found) == bool(reason):
            logger.warning(
                "the promise %s needs either a clause or :informative: with a reason",
                promise,
                location=place.parent,
            )
        if not found:
            label = nodes.strong("", "Informative. ")
            text = nodes.Text(reason or "No clause answers it.")
            return nodes.paragraph("", "", label, text)
        links = between((self.link(clause) for clause in found), ", ")
        label = nodes.inline("", "Answered by ", classes=["label"])
        return nodes.paragraph("", "", label, *links, classes=["answers"])

    def link(self, clause: Clause) -> nodes.Node:
        """Return a link to a clause, by its id."""
        return reference("clause", clause.id, clause.id, self.env.docname)


def report_list(reports: list[Shown], srcdir: Path) -> nodes.Node:
    """Return the table of the committed reports, each one to be downloaded."""
    if not reports:
        return missing("No report is committed.")
    head = ["Implementation", "Conforms", "Cases", "Clauses", "Date", "Report"]
    rows = [report_row(report, srcdir) for report in reports]
    return table(head, rows, "report-list")


def report_row(report: Shown, srcdir: Path) -> list[object]:
    """Return what one report says of its whole run."""
    counted = report.counted()
    clauses = ", ".join(
        f"{counted[verdict]} {boxes.WORDS.get(verdict, verdict.value)}"
        for verdict in boxes.SYMBOLS
        if counted[verdict]
    )
    target = "/" + Path(os.path.relpath(report.file, srcdir)).as_posix()
    name = nodes.literal("", report.file.name)
    conforms = "yes" if report.summary.conforms else "no"
    return [
        nodes.strong("", report.title),
        conforms if report.full else "only a part was run",
        report.summary.cases,
        clauses,
        report.started.partition("T")[0],
        addnodes.download_reference("", "", name, reftarget=target),
    ]


def setup(app: Sphinx) -> None:
    """Register the transform."""
    app.add_node(Table)
    app.add_post_transform(FillTables)
