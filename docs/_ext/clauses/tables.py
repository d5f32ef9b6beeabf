"""Fills in what needs all clauses: the index, the matrix, the answers to a promise."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from docutils import nodes
from elements import badge, between, missing, table, with_code
from sharedtensor_conformance.adapter import operations_of
from sharedtensor_conformance.clauses import Clause
from sharedtensor_conformance.evidence import Citation, citing
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging

from clauses import boxes, field, implementations, matrix_page, releases_page
from clauses.changes import changes
from clauses.domain import NAME, reference
from clauses.links import Links
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
        found = self.env.clauses_evidence
        head = ["Clause", "Level", "Profile", "Observes", "Tests", "Mutants", "Title"]
        rows = [
            [
                self.link(clause),
                badge(clause.level, f"level-{clause.level.lower()}"),
                nodes.literal("", clause.profile),
                clause.observes,
                count(citing(found.tests, clause.id)),
                count(citing(found.mutants, clause.id)),
                clause.title,
            ]
            for clause in self.clauses()
        ]
        return table(head, rows, "clause-index")

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
        return releases_page.shown(self.clauses(), found, self.env.docname)

    def everything(self) -> tuple[list[Clause], dict[str, str], Links]:
        """Return all clauses, the titles of chapters, and addresses for this page."""
        return self.clauses(), self.titles(), Links(self.app, self.env.docname)

    def titles(self) -> dict[str, str]:
        """Return the titles of the chapters' pages, by the names of the chapters."""
        defined = self.env.domaindata[NAME]["clause"].values()
        return {
            one.content.chapter: self.env.titles[one.docname].astext()
            for one in defined
        }

    def changes(self, place: Table) -> nodes.Node:
        """Return the table of the clauses whose hash was another one before."""
        head = ["Clause", "Hash before", "Hash after", "What changed", "Title"]
        rows = [
            [
                self.link(change.clause),
                nodes.literal("", change.before) if change.before else "none",
                nodes.literal("", change.clause.hash),
                "its own words" if change.reworded else "terms and rules",
                change.clause.title,
            ]
            for change in changes(self.clauses(), self.env.clauses_earlier)
        ]
        return table(head, rows, "clause-changes")

    def profiles(self, place: Table) -> nodes.Node:
        """Return the table of the profiles: claim, needs, operations, clauses."""
        head = ["Profile", "Claims", "Needs", "Operations", "Clauses in force"]
        clauses = self.clauses()
        rows = [
            [
                nodes.literal("", name),
                with_code(profile.claim),
                literals(profile.needs),
                literals(sorted(operations_of(name))),
                self.links(c for c in clauses if c.profile == name),
            ]
            for name, profile in place["profiles"].items()
        ]
        return table(head, rows, "profiles")

    def links(self, clauses: Iterable[Clause]) -> nodes.Node:
        """Return links to clauses."""
        links = [self.link(clause) for clause in clauses]
        return nodes.inline("", "", *between(links, ", ")) if links else none()

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


def literals(names: Iterable[str]) -> nodes.Node:
    """Return names as code."""
    shown = [nodes.literal("", name) for name in names]
    return nodes.inline("", "", *between(shown, ", ")) if shown else none()


def none() -> nodes.Node:
    """Return what an empty cell of a table shows."""
    return nodes.inline("", "none", classes=["none"])


def count(citations: list[Citation]) -> nodes.Node:
    """Return a number that is visible when it is zero."""
    classes = [] if citations else ["missing"]
    return nodes.inline("", str(len(citations) or "none"), classes=classes)


def setup(app: Sphinx) -> None:
    """Register the transform."""
    app.add_node(Table)
    app.add_post_transform(FillTables)
