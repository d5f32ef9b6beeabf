"""The directives: ``clause`` and ``promise`` define, the others ask for a table."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives as options
from elements import definitions, table
from sharedtensor_conformance.adapter import ADAPTER_CHANGES
from sharedtensor_conformance.clauses import Clause, parse_clause
from sharedtensor_conformance.evidence import citing
from sharedtensor_conformance.profiles import parse_profiles
from sharedtensor_conformance.report.causes import Promise
from sharedtensor_conformance.spec_source import SpecError
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from clauses import boxes, faults, implementations, releases_page
from clauses.domain import NAME, Definition
from clauses.fault_page import FaultPage
from clauses.tables import Table, report_list
from clauses.wording import link_terms

TABLES = ("clause-index", "clause-matrix", "clause-changes", "field", "findings")
"""The directives without an argument that are tables of all clauses or deviations."""


class ClauseDirective(SphinxDirective):
    """Defines a clause and shows everything that backs it.

    It has no options of its own: the body goes to the parser that the suite uses,
    options and all, so that site and suite cannot read a clause differently.
    """

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        source, line = self.get_source_info()
        try:
            content = "\n".join(self.content)
            clause = parse_clause(self.arguments[0], content, source, line)
        except SpecError as error:
            raise self.error(str(error)) from error
        box = nodes.section(ids=[clause.id], classes=["clause"])
        self.set_source_info(box)
        definition = Definition(self.env.docname, clause.title, clause)
        self.env.domains[NAME].define("clause", clause.id, definition, box)
        box += [boxes.heading(clause), boxes.properties(clause, *self._origin(source))]
        box += self._prose(clause)
        box += self._backing(clause)
        return [box]

    def _origin(self, source: str) -> tuple[str, str]:
        root, path = self.env.clauses_root, Path(source).resolve()
        file = path.relative_to(root).as_posix() if path.is_relative_to(root) else ""
        return self.env.docname, f"{file}#L{self.lineno}"

    def _prose(self, clause: Clause) -> list[nodes.Node]:
        text, why = nodes.container(), nodes.container()
        text["classes"], why["classes"] = ["clause-text"], ["clause-why"]
        text += self.parse_text_to_nodes(clause.text)
        link_terms(text, self.env.clauses_terms, self.env.docname)
        why += self.parse_text_to_nodes(f"**Why.** {clause.why}")
        return [text, why]

    def _backing(self, clause: Clause) -> nodes.Node:
        found, docname = self.env.clauses_evidence, self.env.docname
        tests = citing(found.tests, clause.id)
        code = citing(found.code, clause.id)
        mutants = citing(found.mutants, clause.id)
        example = self.env.clauses_examples.get(clause.id)
        rows = {
            "Example": boxes.example_of(example, docname),
            "Tests": boxes.links(tests, docname, "no test cites this clause"),
            "Reference": boxes.code(code, clause, docname),
            "Mutants": boxes.links(mutants, docname, "no mutant breaks this clause"),
            "Verdicts": boxes.verdicts(self.env.clauses_columns, clause, docname),
        }
        terms = [(nodes.Text(name), content) for name, content in rows.items()]
        return definitions(terms, "clause-backing")


class PromiseDirective(SphinxDirective):
    """Defines a promise and lists the clauses that answer it.

    A promise that no clause answers needs ``:informative:`` with the reason; each needs
    ``:source:``, the address of the documentation that makes it.
    """

    required_arguments = 1
    has_content = True
    option_spec: ClassVar = {
        "informative": options.unchanged_required,
        "source": options.uri,
    }

    def run(self) -> list[nodes.Node]:
        self.assert_has_content()
        id, text = self.arguments[0], " ".join(self.content)
        if "source" not in self.options:
            raise self.error(
                f"the promise {id} needs a :source:, the address of the documentation "
                "that makes it"
            )
        box = nodes.container(ids=[id], classes=["promise"])
        self.set_source_info(box)
        promise = Promise(text, self.options["source"])
        definition = Definition(self.env.docname, text.partition(".")[0], promise)
        self.env.domains[NAME].define("promise", id, definition, box)
        name = nodes.paragraph("", "", nodes.strong("", id), classes=["promise-id"])
        box += [name, *self.parse_content_to_nodes(), boxes.source_of(promise)]
        box += Table(kind="answers", promise=id, reason=self.options.get("informative"))
        return [box]


class TableDirective(SphinxDirective):
    """Marks the place of a table that is filled in when all pages are known."""

    def run(self) -> list[nodes.Node]:
        place = Table(kind=self.name)
        self.set_source_info(place)
        return [place]


class ProfilesDirective(SphinxDirective):
    """Shows the profiles of its body in one table, with the clauses of each."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        try:
            profiles = parse_profiles("\n".join(self.content))
        except SpecError as error:
            raise self.error(str(error)) from error
        place = Table(kind="profiles", profiles=profiles)
        self.set_source_info(place)
        return [place]


class ContractVersionsDirective(SphinxDirective):
    """Shows what is new in each version of the contract of adapters."""

    def run(self) -> list[nodes.Node]:
        rows = [
            [number, ", ".join(sorted(change.profiles)), change.text]
            for number, change in ADAPTER_CHANGES.items()
        ]
        return [table(["Version", "Profiles", "What is new"], rows)]


class ReportListDirective(SphinxDirective):
    """Shows the committed reports, each one to be downloaded."""

    def run(self) -> list[nodes.Node]:
        return [report_list(self.env.clauses_reports, Path(self.env.srcdir))]


class ImplementationDirective(SphinxDirective):
    """``{implementation} NAME``: the sections of an implementation's page."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        return [self._section(name, *part) for part in implementations.PARTS.items()]

    def _section(self, name: str, kind: str, title: str) -> nodes.Node:
        place = Table(kind=kind, name=name)
        self.set_source_info(place)
        heading = nodes.title("", title)
        return nodes.section("", heading, place, ids=[nodes.make_id(title)])


class ReleasesDirective(SphinxDirective):
    """``{releases} NAME``: since which release of a library each clause is broken."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        found = self.env.clauses_releases.get(name, [])
        place = Table(kind="releases", name=name)
        self.set_source_info(place)
        # What is to be downloaded has to be there when the page is read.
        return [place, releases_page.downloads(found)]


class FaultTableDirective(SphinxDirective):
    """Shows the fault table with the verdicts of the committed reports."""

    def run(self) -> list[nodes.Node]:
        cells = faults.read(self.env.clauses_root, self.env.clauses_evidence.tests)
        if cells is None:
            raise self.error(f"there is no {faults.FILE} to be shown")
        faults.verify_reports(cells, self.env.clauses_reports)
        judged = faults.judged(cells, self.env.clauses_columns)
        return FaultPage(cells, judged, self.env.docname).sections()


def setup(app: Sphinx) -> None:
    """Register the directives."""
    app.add_directive("clause", ClauseDirective)
    app.add_directive("promise", PromiseDirective)
    for kind in TABLES:
        app.add_directive(kind, TableDirective)
    app.add_directive("contract-versions", ContractVersionsDirective)
    app.add_directive("profiles", ProfilesDirective)
    app.add_directive("report-list", ReportListDirective)
    app.add_directive("implementation", ImplementationDirective)
    app.add_directive("releases", ReleasesDirective)
    app.add_directive("fault-table", FaultTableDirective)
