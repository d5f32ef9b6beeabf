"""Shows deviations as reports that can be pasted into the tracker of their project.

A report of a deviation is a section of the page of its project: program, what it
printed, what was expected and who promised it, versions, and the same as Markdown. What
needs the text of promises and clauses is filled in when all pages have been read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from docutils import nodes
from elements import (
    between,
    definitions,
    folded,
    missing,
    paragraph,
    table,
    with_code,
)
from sharedtensor_conformance.clauses import SPEC_VERSION
from sharedtensor_conformance.report.causes import Promise
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective

from clauses.deviations import PATCHED, Deviating, Report, fixes_of
from clauses.domain import NAME, reference
from clauses.findings import in_order
from clauses.links import Links
from clauses.outcomes import Outcome, outcome_in
from clauses.rendering import written

FOLDER = "upstream"
"""The folder with a page of reports for each project, named as the implementation."""


class Later(nodes.General, nodes.Element):
    """The place of what needs promises, clauses, or addresses of other pages."""


class DeviationDirective(SphinxDirective):
    """A directive about the deviations of the implementation that it names."""

    required_arguments = 1

    @property
    def implementation(self) -> str:
        """The name of the implementation."""
        return self.arguments[0]

    def deviating(self) -> Deviating:
        """Return the deviations of the implementation."""
        known: dict[str, Deviating] = self.env.clauses_deviations
        if self.implementation not in known:
            raise self.error(f"nothing is known of {self.implementation}'s deviations")
        return known[self.implementation]

    def clauses(self, ids: Iterable[str]) -> nodes.Node:
        """Return links to clauses."""
        return clause_links(ids, self.env.docname)

    def program(self, report: Report, text: str) -> nodes.Node:
        """Return a link to the page that shows a program."""
        return reference("source", report.file, text, self.env.docname)


class ReportsDirective(DeviationDirective):
    """``{deviation-reports} NAME``: a list, and a section for each report."""

    def run(self) -> list[nodes.Node]:
        reports = self.deviating().promised()
        if not reports:
            return [paragraph("Nothing: no promise of its own is broken.")]
        return [self._list(reports), *map(self._section, reports)]

    def _list(self, reports: list[Report]) -> nodes.Node:
        patched = PATCHED.get(self.implementation)
        head = ["Report", "Clauses", "Thread"]
        rows: list[list[object]] = []
        for report in reports:
            link = nodes.reference("", "", with_code(report.title), internal=True)
            link["refid"] = report.anchor
            rows.append([link, self.clauses(report.clauses), threads_of([report])])
            if patched:
                rows[-1].append(repair(report))
        return table([*head, f"Repaired in {patched}"] if patched else head, rows)

    def _section(self, report: Report) -> nodes.Node:
        title = nodes.title("", "", *with_code(report.title).children)
        section = nodes.section("", title, ids=[report.anchor], names=[])
        self.set_source_info(section)
        program, output = code(report.program.rstrip(), "python"), code(report.output)
        facts = definitions(self._facts(report), "deviation-facts")
        copied = Later(kind="markdown", **self._named(report))
        section += [
            nodes.paragraph("", "", with_code(report.happens)),
            program,
            paragraph("It prints:"),
            output,
            facts,
            folded([nodes.Text("The report as Markdown, to be copied")], copied),
        ]
        return section

    def _named(self, report: Report) -> dict[str, str]:
        return {"implementation": self.implementation, "report": report.name}

    def _facts(self, report: Report) -> Iterator[tuple[nodes.Node, nodes.Node]]:
        yield fact("Expected", with_code(report.cause.expected))
        yield nodes.Text("Promised"), Later(kind="promises", **self._named(report))
        places = [with_code(place) for place in report.places()]
        yield nodes.Text("Comes from"), listed(places)
        run = report.run
        said = f"{report.project} {run.version}, Python {run.python}, {run.kernel}"
        yield fact("Versions", nodes.Text(f"{said}; run on {run.date}"))
        yield fact("Program", self.program(report, f"{report.name}.py"))
        yield fact("Clauses", self.clauses(report.clauses))
        yield fact("Threads", threads_of([report]))
        if self.implementation in PATCHED:
            yield fact("Repaired", repair(report))


class UnpromisedDirective(DeviationDirective):
    """``{deviations-without-promise} NAME``: a table of what is no report, and why."""

    def run(self) -> list[nodes.Node]:
        rows = [
            [
                self.program(report, report.title.replace("`", "")),
                self.clauses(report.clauses),
                with_code(report.cause.no_promise),
                threads_of([report]),
            ]
            for report in self.deviating().unpromised()
        ]
        return [table(["Deviation", "Clauses", "No promise", "Thread"], rows)]


class DeviationClausesDirective(DeviationDirective):
    """``{deviation-clauses} NAME``: each broken clause, and what is known of it."""

    def run(self) -> list[nodes.Node]:
        self.deviating()
        return [Later(kind="clauses", implementation=self.implementation)]


class FillLater(SphinxPostTransform):
    """Replaces each `Later` by its content, before references are resolved."""

    default_priority = 5

    def run(self, **kwargs: object) -> None:
        makers: dict[str, Any] = {
            "promises": self.promises,
            "markdown": self.markdown,
            "clauses": self.clauses,
        }
        for place in list(self.document.findall(Later)):
            known: Deviating = self.env.clauses_deviations[place["implementation"]]
            place.replace_self(makers[place["kind"]](place, known))

    def promises(self, place: Later, known: Deviating) -> nodes.Node:
        """Return what the project has promised, each with a link to where."""
        report = self._report(place, known)
        items = []
        for name, promise in promises_of(report, known, self.env):
            source = nodes.reference("", "source", refuri=promise.source)
            line = [with_code(promise.says), nodes.Text(" ("), source, nodes.Text(")")]
            if name not in known.promises:
                link = reference("promise", name, name, self.env.docname)
                line = [link, nodes.Text(" "), *line]
            items.append(nodes.inline("", "", *line))
        return listed(items)

    def markdown(self, place: Later, known: Deviating) -> nodes.Node:
        """Return a report as it can be pasted."""
        return code(markdown_of(self._report(place, known), known, self.env))

    def _report(self, place: Later, known: Deviating) -> Report:
        return next(one for one in known.reports if one.name == place["report"])

    def clauses(self, place: Later, known: Deviating) -> nodes.Node:
        """Return the table of the clauses that an implementation breaks."""
        name, columns = place["implementation"], self.env.clauses_columns
        column = next(column for column in columns if column.name == name)
        patched = [column for column in columns if column.name == PATCHED.get(name)]
        judged = in_order(column.judgements, self.config.clauses_chapters)
        broken = [id for id in judged if outcome_in(column, id) is Outcome.BROKEN]
        if not broken:
            return missing("Nothing is broken.")
        head = ["Clause", "Promised", "Thread"]
        rows: list[list[object]] = []
        for id in broken:
            about = [report for report in known.reports if id in report.clauses]
            link = reference("clause", id, id, self.env.docname)
            rows.append([link, self._promised(about, name), threads_of(about)])
            rows[-1] += [restored(id, outcome_in(one, id)) for one in patched]
        return table([*head, *(f"Holds in {one.name}" for one in patched)], rows)

    def _promised(self, about: list[Report], name: str) -> nodes.Node:
        """Return links to the reports in which a clause was promised."""
        links = Links(self.app, self.env.docname)
        found = [
            nodes.reference(
                "",
                "",
                with_code(report.title),
                refuri=links.page(f"{FOLDER}/{name}", report.anchor),
                internal=True,
            )
            for report in about
            if report.cause.promises
        ]
        return nodes.inline("", "", *between(found, "; ")) if found else word("no")


def promises_of(
    report: Report, known: Deviating, env: BuildEnvironment
) -> Iterator[tuple[str, Promise]]:
    """Yield the promises that a report is about, by their names.

    Raises:
        ExtensionError: one of the site is not there.
    """
    for name in report.cause.promises:
        promise = known.promises.get(name)
        if promise is None:
            defined = env.domaindata[NAME]["promise"].get(name)
            promise = defined.content if defined else None
        if promise is None:
            raise ExtensionError(
                f"{report.file} breaks the promise {name}, which is not on the page of "
                "promises"
            )
        yield name, promise


def markdown_of(report: Report, known: Deviating, env: BuildEnvironment) -> str:
    """Return a report as Markdown."""
    defined = env.domaindata[NAME]["clause"]
    titles = [(id, defined[id].title) for id in report.clauses]
    promises = [promise for _, promise in promises_of(report, known, env)]
    content = {"report": report, "promises": promises, "clauses": titles}
    return written("deviation.md", spec=SPEC_VERSION, **content).strip()


def clause_links(ids: Iterable[str], docname: str) -> nodes.Node:
    """Return links to clauses."""
    links = [reference("clause", id, id, docname) for id in ids]
    return nodes.inline("", "", *between(links, ", "))


def fact(term: str, content: nodes.Node) -> tuple[nodes.Node, nodes.Node]:
    """Return a line of the facts of a report."""
    return nodes.Text(term), nodes.paragraph("", "", content)


def code(text: str, language: str = "text") -> nodes.literal_block:
    """Return a block that can be copied: one needs its source for that."""
    return nodes.literal_block(text, text, language=language)


def listed(items: Iterable[nodes.Node]) -> nodes.Node:
    """Return a list of inline nodes."""
    lines = [nodes.list_item("", nodes.paragraph("", "", item)) for item in items]
    return nodes.bullet_list("", *lines)


def threads_of(reports: Iterable[Report]) -> nodes.Node:
    """Return links to the threads about deviations, and to related ones."""
    known = dict.fromkeys(thread for one in reports for thread in one.threads)
    links = [thread_link(thread, "") for thread in known]
    near = dict.fromkeys(thread for one in reports for thread in one.cause.related)
    links += [thread_link(thread, "related: ") for thread in near]
    return nodes.inline("", "", *between(links, ", ")) if links else word("none known")


def thread_link(address: str, label: str) -> nodes.Node:
    """Return a link to a thread of GitHub, such as ``pytorch#973``."""
    *_, repository, _, thread = address.split("/")
    text = f"{label}{repository}#{thread}"
    return nodes.reference("", text, refuri=address, internal=False)


def repair(report: Report) -> nodes.Node:
    """Return whether a deviation is gone with the fixes in Python, and which."""
    if report.repaired is None:
        return word("not judged")
    if not report.repaired:
        return word("no")
    return nodes.inline("", f"by {', '.join(report.fixes) or 'all fixes together'}")


def restored(clause: str, outcome: Outcome) -> nodes.Node:
    """Return whether a clause holds with the fixes in Python, and by which."""
    fixes = ", ".join(fixes_of([clause]))
    if outcome is Outcome.HELD:
        return nodes.inline("", f"by {fixes or 'all fixes together'}")
    if outcome is Outcome.BROKEN:
        return nodes.inline("", f"in part, by {fixes}") if fixes else word("no")
    return word("not judged")


def word(text: str) -> nodes.Node:
    """Return what stands where there is nothing to link to."""
    return nodes.inline("", text, classes=["none"])


def setup(app: Sphinx) -> None:
    """Register the directives."""
    app.add_node(Later)
    app.add_directive("deviation-reports", ReportsDirective)
    app.add_directive("deviations-without-promise", UnpromisedDirective)
    app.add_directive("deviation-clauses", DeviationClausesDirective)
    app.add_post_transform(FillLater)
