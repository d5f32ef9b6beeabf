"""Shows the deviations of all projects in one table: what is broken where.

Programs of two projects that have one name show the same deviation, so they are one
line. Whoever asks whether another library does it too finds that here; the rest is on
the page of each project.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from docutils import nodes
from elements import table, with_code
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective

from clauses.deviation_pages import FOLDER, clause_links, word
from clauses.deviations import PROJECTS, Deviating, Report
from clauses.domain import NAME
from clauses.links import Links

PROMISED, NOT_PROMISED = "✗ promised", "✗"


@dataclass(frozen=True)
class Finding:
    """One deviation, as the projects have it; the first is the one that names it."""

    reports: Mapping[str, Report]

    @property
    def title(self) -> str:
        """What happens, in a line."""
        return next(iter(self.reports.values())).title

    @property
    def clauses(self) -> list[str]:
        """The clauses that it breaks in some project."""
        every = (id for report in self.reports.values() for id in report.clauses)
        return list(dict.fromkeys(every))


def findings(known: Mapping[str, Deviating]) -> list[Finding]:
    """Return the deviations of all projects by their names."""
    found: dict[str, dict[str, Report]] = {}
    for project, deviating in known.items():
        for report in deviating.reports:
            found.setdefault(report.name, {})[project] = report
    return [Finding(reports) for reports in found.values()]


class Findings(nodes.General, nodes.Element):
    """The place of the table, which needs addresses of other pages."""


class FindingsDirective(SphinxDirective):
    """``{findings}``: each deviation, by the projects that have it."""

    def run(self) -> list[nodes.Node]:
        sources = self.env.domaindata[NAME]["sources"]
        for deviating in self.env.clauses_deviations.values():
            files = (report.file for report in deviating.unpromised())
            sources.setdefault(self.env.docname, set()).update(files)
        return [Findings()]


class FillFindings(SphinxPostTransform):
    """Replaces each `Findings` by its table, before references are resolved."""

    default_priority = 5

    def run(self, **kwargs: object) -> None:
        for place in list(self.document.findall(Findings)):
            place.replace_self(self.table())

    def table(self) -> nodes.Node:
        """Return the table, in the order of the clauses."""
        known: dict[str, Deviating] = self.env.clauses_deviations
        chapters: Sequence[str] = self.config.clauses_chapters
        found = sorted(findings(known), key=lambda one: places(one.clauses, chapters))
        head = ["Deviation", "Clauses", *(PROJECTS[name] for name in known)]
        rows = (
            [
                with_code(one.title),
                clause_links(in_order(one.clauses, chapters), self.env.docname),
                *self.cells(one, known),
            ]
            for one in found
        )
        return table(head, rows, "findings")

    def cells(self, finding: Finding, projects: Iterable[str]) -> Iterator[nodes.Node]:
        """Yield a link to the report of each project, or to its program."""
        links = Links(self.app, self.env.docname)
        for project in projects:
            report = finding.reports.get(project)
            if report is None:
                yield word("")
                continue
            if report.cause.promises:
                shown = PROMISED
                address = links.page(f"{FOLDER}/{project}", report.anchor)
            else:
                shown, address = NOT_PROMISED, links.source(report.file)
            yield nodes.reference("", shown, refuri=address, internal=True)


def places(clauses: Iterable[str], chapters: Sequence[str]) -> list[tuple[int, int]]:
    """Return the places of clauses in the specification, the first one first."""
    known = {chapter: place for place, chapter in enumerate(chapters)}
    parts = (id.partition("-") for id in clauses)
    return sorted((known.get(name, len(known)), int(n)) for name, _, n in parts)


def in_order(clauses: Iterable[str], chapters: Sequence[str]) -> list[str]:
    """Return clauses as the specification has them."""
    return sorted(clauses, key=lambda id: places([id], chapters))


def setup(app: Sphinx) -> None:
    """Register the directive."""
    app.add_node(Findings)
    app.add_directive("findings", FindingsDirective)
    app.add_post_transform(FillFindings)
