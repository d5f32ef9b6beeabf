"""The directives: ``clause`` and ``promise`` define, the others leave places."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives as options
from sharedtensor_conformance.chapters.state_machines import MACHINES
from sharedtensor_conformance.clauses import Clause, parse_clause
from sharedtensor_conformance.profiles import parse_profiles
from sharedtensor_conformance.report.causes import Promise
from sharedtensor_conformance.spec_source import SpecError
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from clauses import faults
from clauses.backing import Backing
from clauses.domain import NAME, Definition, reference
from clauses.rendering import place
from clauses.wording import link_terms

TEMPLATES = (
    *("clause-index", "clause-matrix", "clause-changes", "contract-versions"),
    *("architecture", "field", "findings", "report-list", "releases"),
    *("deviation-list", "deviation-clauses", "deviations-without-promise"),
)
"""The templates with a directive, which may be about an implementation."""

IMPLEMENTATION = {
    "implementation-figures": "What it holds",
    "implementation-broken": "What it breaks",
    "implementation-not-run": "What was not run, and why",
    "implementation-runs": "How to repeat the runs",
}
"""The templates of the page of an implementation, and the titles of their sections."""

FAULT_TABLE = {
    "fault-steps": "Steps",
    "fault-roles": "Roles",
    "fault-faults": "Faults",
    "fault-verdicts": "Verdicts",
    "fault-cells": "Cells",
    "fault-reasons": "Reasons",
    "fault-findings": "Behind the verdicts",
}
"""The same of the fault table; an anchor has the name of its template."""

Section = tuple[str, str, nodes.Node]
"""A section of a page: its title, its anchor and its content."""

COPIED: dict[str, Callable[[Backing, str], Iterable[Path]]] = {
    "report-list": lambda backing, name: (one.file for one in backing.reports),
    "releases": lambda backing, name: (
        one.file for one in backing.releases.get(name, []) if one.file
    ),
}
"""The files that a template links to, to be downloaded."""


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
        anchors = [clause.id, clause.id.lower()]  # links are typed in either way
        box = nodes.section(ids=anchors, classes=["clause", "no-search"])
        self.set_source_info(box)
        definition = Definition(self.env.docname, clause.title, clause)
        self.env.domains[NAME].define("clause", clause.id, definition, box)
        id = nodes.inline("", clause.id, classes=["clause-id"])
        box += nodes.title("", "", id, nodes.Text(f" {clause.title}"))
        box += self._properties(clause, source)
        box += self._prose(clause)
        box += place("clause-strip", clause=clause)
        return [box]

    def _properties(self, clause: Clause, source: str) -> nodes.paragraph:
        level = f"level-{clause.level.lower()}"
        line = nodes.paragraph(classes=["clause-properties"])
        line += nodes.inline("", clause.level, classes=["badge", level])
        line += labelled("profile", nodes.literal("", clause.profile))
        line += labelled("observes", nodes.inline("", clause.observes))
        docname = self.env.docname
        answers = [reference("promise", id, id, docname) for id in clause.promises]
        if answers:
            line += labelled("answers", *answers)
        text = reference("source", self._origin(source), "", docname)
        text.children[0] += nodes.literal("", clause.hash)
        line += labelled("text", text)
        return line

    def _origin(self, source: str) -> str:
        root, path = self.env.domains[NAME].backing.root, Path(source).resolve()
        file = path.relative_to(root).as_posix() if path.is_relative_to(root) else ""
        return f"{file}#L{self.lineno}"

    def _prose(self, clause: Clause) -> list[nodes.Node]:
        text, why = nodes.container(), nodes.container()
        text["classes"], why["classes"] = ["clause-text"], ["clause-why"]
        text += self.parse_text_to_nodes(clause.text)
        link_terms(text, self.env.domains[NAME].backing.terms, self.env.docname)
        why += self.parse_text_to_nodes(f"**Why.** {clause.why}")
        return [text, why]


def labelled(label: str, *content: nodes.Node) -> nodes.inline:
    """Return `content` after its label."""
    part = nodes.inline(classes=["property"])
    part += nodes.inline("", label, classes=["label"])
    for one in content:
        part += [nodes.Text(" "), one]
    return part


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
        reason = self.options.get("informative", "")
        title = text.partition(".")[0]
        definition = Definition(self.env.docname, title, promise, reason)
        self.env.domains[NAME].define("promise", id, definition, box)
        name = nodes.paragraph("", "", nodes.strong("", id), classes=["promise-id"])
        box += [name, *self.parse_content_to_nodes()]
        box += place("answers", id=id)
        return [box]


class ProfilesDirective(SphinxDirective):
    """Shows the profiles of its body in one table, with the clauses of each."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        try:
            profiles = parse_profiles("\n".join(self.content))
        except SpecError as error:
            raise self.error(str(error)) from error
        return [place("profiles", profiles=profiles)]


class TemplateDirective(SphinxDirective):
    """``{TEMPLATE}``, or ``{TEMPLATE} NAME`` for what is about an implementation."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0] if self.arguments else ""
        backing = self.env.domains[NAME].backing
        if self.name.startswith("deviation") and name not in backing.deviations:
            raise self.error(f"there is nothing to show: {name!r}")
        for file in COPIED[self.name](backing, name) if self.name in COPIED else ():
            copied = file.relative_to(self.env.srcdir).as_posix()
            self.env.dlfiles.add_file(self.env.docname, copied)
        return [place(self.name, name=name)]


class SectionsDirective(SphinxDirective):
    """``{NAME}``, or ``{NAME} ARGUMENT``: what one of `SECTIONS` is made of."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        backing = self.env.domains[NAME].backing
        about = self.arguments[0] if self.arguments else ""
        try:
            found = list(SECTIONS[self.name](backing, about))
        except LookupError as error:
            raise self.error(f"there is nothing to show: {error}") from error
        return [self._section(*one) for one in found]

    def _section(self, title: str, id: str, content: nodes.Node) -> nodes.Node:
        heading = nodes.title("", "", *with_code(title))
        section = nodes.section("", heading, content, ids=[id])
        self.set_source_info(section)
        return section


def implementation(backing: Backing, name: str) -> Iterator[Section]:
    """Yield what it holds, what it breaks and what was not run, and how to repeat."""
    if backing.column(name) is None:
        raise LookupError(f"{name}: no report is committed")
    for template, title in IMPLEMENTATION.items():
        yield title, nodes.make_id(title), place(template, name=name)


def fault_table(backing: Backing, _: str) -> Iterator[Section]:
    """Yield what the fault table is made of, its cells, and what is behind them."""
    if backing.faults is None:
        raise LookupError(f"{faults.FILE} is missing")
    for id, title in FAULT_TABLE.items():
        yield title, id, place(id)


def state_machines(_: Backing, __: str) -> Iterator[Section]:
    """Yield the machines that random histories follow."""
    for one in MACHINES:
        content = place("machine", machine=one)
        yield one.name.capitalize(), f"machine-{one.name}", content


def with_code(text: str) -> list[nodes.Node]:
    """Return the parts of a sentence; what stands between backticks is code."""
    parts = enumerate(text.split("`"))
    return [nodes.literal("", one) if n % 2 else nodes.Text(one) for n, one in parts]


SECTIONS = {
    "implementation": implementation,
    "fault-table": fault_table,
    "state-machines": state_machines,
}


def setup(app: Sphinx) -> None:
    """Register the directives."""
    app.add_directive("clause", ClauseDirective)
    app.add_directive("promise", PromiseDirective)
    for template in TEMPLATES:
        app.add_directive(template, TemplateDirective)
    app.add_directive("profiles", ProfilesDirective)
    for name in SECTIONS:
        app.add_directive(name, SectionsDirective)
