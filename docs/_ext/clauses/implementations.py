"""A page for each implementation: what it holds, what it breaks, what was not run.

A page is laid out where its directive stands. What needs all clauses is filled in when
they are known, as the tables are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from docutils import nodes
from elements import between, folded, missing, paragraph, table
from sharedtensor_conformance.adapter import LONG_PROFILES
from sharedtensor_conformance.clauses import Clause
from sharedtensor_conformance.report.groups import Group
from sharedtensor_conformance.report.needs import reason
from sharedtensor_conformance.report.records import Machine
from sharedtensor_conformance.report.repeat import repeat_command
from sharedtensor_conformance.report.signatures import main_evidence

from clauses import boxes
from clauses.domain import reference
from clauses.known import Deviation
from clauses.links import Links
from clauses.outcomes import Outcome, counted, outcome_in, to_name
from clauses.rendering import rendered
from clauses.reports import Column, Shown

PARTS = {
    "implementation-figures": "What it holds",
    "implementation-broken": "What it breaks",
    "implementation-not-run": "What was not run, and why",
    "implementation-runs": "How to repeat the runs",
}
"""The sections of a page: what fills each in, and its title."""

SHOWN_CLAUSES = 12
"""How many clauses of one reason are listed before the rest is folded."""

CONFIGURATION = re.compile(r" under [a-z_]+$")


def console(commands: str) -> nodes.literal_block:
    """Return a block of commands; only one that has its source is highlighted."""
    return nodes.literal_block(commands, commands, language="console")


class Page:
    """What fills in the sections of one implementation's page."""

    def __init__(
        self,
        column: Column,
        clauses: Sequence[Clause],
        titles: Mapping[str, str],
        links: Links,
        docname: str,
    ) -> None:
        self.column = column
        self.clauses = clauses
        self.titles = titles
        self.links = links
        self.docname = docname

    def part(self, name: str) -> list[nodes.Node]:
        """Return what fills in the section `name`, one of `PARTS`."""
        made = self.figures, self.broken, self.not_run, self.runs
        return dict(zip(PARTS, made, strict=True))[name]()

    def figures(self) -> list[nodes.Node]:
        """Return how many clauses have each outcome, together and by chapter."""
        counts = counted(self.column, self.clauses).items()
        by_chapter = groupby(self.clauses, key=lambda clause: clause.chapter)
        chapters = [
            {
                "name": name,
                "about": self.titles[name].partition(": ")[2],
                "url": self.links.matrix(name, implementation=self.column.slug),
                "counts": dict.fromkeys(Outcome, 0)
                | counted(self.column, list(members)),
            }
            for name, members in by_chapter
        ]
        parts = [(outcome, n, self.matrix_of(outcome)) for outcome, n in counts]
        named = to_name([self.column], self.clauses)
        shown = {"parts": parts, "chapters": chapters, "outcomes": named}
        return [rendered("implementation.html", **shown)]

    def matrix_of(self, outcome: Outcome) -> str:
        """Return the address of the clauses with an outcome, in the matrix."""
        return self.links.matrix(implementation=self.column.slug, verdict=outcome.slug)

    def broken(self) -> list[nodes.Node]:
        """Return what is broken, a box for each cause, the most basic clause first."""
        found = [
            self.cause(report, group, known)
            for report in self.column.reports
            for group, known in report.groups
        ]
        found += self.not_shown()
        if not found:
            return [paragraph("Nothing: each clause that was judged held.")]
        causes = "cause" if len(found) == 1 else "causes"
        text = f"{len(found)} {causes}, from the most basic clause."
        return [paragraph(text), *found]

    def not_shown(self) -> Iterator[nodes.Element]:
        """Yield the known deviations that did not show in the recorded run."""
        for clause in self.clauses:
            judgement = self.column.judgements.get(clause.id)
            for known in judgement.not_shown if judgement else ():
                line = [nodes.strong("", clause.id), nodes.Text(f": {known.cause}")]
                where = nodes.paragraph(
                    "", "", nodes.Text("Clause: "), self.clause(clause.id)
                )
                known_by = boxes.known_of(known, self.docname)
                box = folded(line, paragraph(boxes.NOT_SHOWN), *known_by, where)
                box["classes"].append("cause-box")
                yield box

    def cause(
        self, report: Shown, group: Group, known: Deviation | None
    ) -> nodes.Element:
        """Return one cause: its clauses, a program, a thread, the evidence."""
        named = ", ".join(group.clauses[:SHOWN_CLAUSES]) + self.more(group.clauses)
        said = known.cause if known else main_evidence(group.shown)
        line = [nodes.strong("", named), nodes.Text(f": {said}")]
        box = folded(line, *self.behind(report, group, known))
        box["classes"].append("cause-box")
        return box

    def more(self, clauses: Sequence[str]) -> str:
        """Return how many clauses are not named."""
        left = len(clauses) - SHOWN_CLAUSES
        return f" and {left} more" if left > 0 else ""

    def behind(
        self, report: Shown, group: Group, known: Deviation | None
    ) -> Iterator[nodes.Element]:
        """Yield what stands behind one cause."""
        case = group.shown
        count = f"{len(group.cases)} {'case' if len(group.cases) == 1 else 'cases'}"
        yield paragraph(f"{case.verdict.capitalize()} in {count} of {report.title}.")
        if known:
            yield from boxes.known_of(known, self.docname)
        else:
            yield paragraph(f"Not expected. Seen on {report.started[:10]}.")
        names = between(map(self.clause, group.clauses), ", ")
        label = "Clause: " if len(group.clauses) == 1 else "Clauses: "
        yield nodes.paragraph("", "", nodes.Text(label), *names)
        yield nodes.literal_block("", case.evidence, language="text")
        yield console(f"$ {repeat_command(report.run, group.first, case)}")

    def not_run(self) -> list[nodes.Node]:
        """Return the reasons why clauses were not judged, with the clauses of each."""
        reasons: dict[str, list[str]] = {}
        for clause in self.clauses:
            if outcome_in(self.column, clause.id) in (
                Outcome.NOT_CLAIMED,
                Outcome.NOT_RUN,
                Outcome.NOT_HERE,
            ):
                reasons.setdefault(self.reason(clause), []).append(clause.id)
        if not reasons:
            return [paragraph("Nothing: each clause was judged.")]
        rows = [[reason, len(ids), self.all_of(ids)] for reason, ids in reasons.items()]
        return [table(["Why", "Clauses", ""], rows, "not-run")]

    def reason(self, clause: Clause) -> str:
        """Return why `clause` was not judged."""
        judgement = self.column.judgements.get(clause.id)
        if judgement is None:
            return "the clause is newer than the recorded run"
        if judgement.needs:
            return reason(judgement.needs)
        if judgement.reasons:
            return CONFIGURATION.sub("", next(iter(judgement.reasons)))
        claims = {c for r in self.column.reports for c in r.run.implementation.claims}
        if clause.profile not in claims:
            return f"the profile '{clause.profile}' is not claimed"
        if clause.profile in LONG_PROFILES:
            return f"the profile '{clause.profile}' is judged only when it is asked for"
        return "no case of the run judged it"

    def all_of(self, ids: Sequence[str]) -> nodes.Node:
        """Return links to clauses, folded where there are many."""
        links = between(map(self.clause, ids), ", ")
        if len(ids) <= SHOWN_CLAUSES:
            return nodes.inline("", "", *links)
        line = nodes.paragraph("", "", *links)
        return folded([nodes.Text(f"{ids[0]} to {ids[-1]}")], line)

    def runs(self) -> list[nodes.Node]:
        """Return the commands of the recorded runs, and where they ran."""
        found: list[nodes.Node] = []
        for report in self.column.reports:
            selection = report.run.selection
            command = " ".join([*selection.command, *selection.options])
            summary = report.summary
            said = (
                f"On {report.started[:10]}: {summary.cases} cases in "
                f"{summary.seconds:.0f} s, {machine(report.run.machine)}."
            )
            found += [
                paragraph(said),
                *self.changed_since(report),
                console(f"$ {command}"),
            ]
        return found or [missing("No report is committed.")]

    def changed_since(self, report: Shown) -> Iterator[nodes.Element]:
        """Yield the clauses whose text is not the one that a run has judged."""
        changed = [
            self.clause(clause.id)
            for clause in self.clauses
            if (judgement := report.judgements.get(clause.id))
            and boxes.is_of_another_text(judgement, clause)
        ]
        if changed:
            told = "The text of these clauses has changed since they were judged: "
            yield nodes.paragraph("", told, *between(changed, ", "))

    def clause(self, id: str) -> nodes.Node:
        """Return the link to what this implementation makes of a clause."""
        return reference("clause", id, id, self.docname)


def machine(where: Machine) -> str:
    """Return where a run was made, in words."""
    cpus = f"{where.cpus} {'processor' if where.cpus == 1 else 'processors'}"
    return f"Python {where.python} on {where.platform}, {cpus}"
