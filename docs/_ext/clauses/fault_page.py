"""Turns the fault table into nodes: what it is made of, its cells, what is behind them.

Each cell says the same by text, by link and by title: its case and clause with the
verdict of each implementation, or the number of the reason why nothing is run there.
"""

from __future__ import annotations

from docutils import nodes
from elements import between, definitions, folded, missing, paragraph, table, tag
from sharedtensor_conformance.chapters.fault_table import Cell, Step
from sharedtensor_conformance.evidence import CLAUSE_ID, Citation
from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.verdicts import Verdict

from clauses import boxes
from clauses.domain import reference
from clauses.faults import FaultTable, Judged
from clauses.reports import Judgement


def hidden(text: str) -> nodes.inline:
    """Return text for those who hear the page."""
    return nodes.inline("", text, classes=["heard"])


def section(title: str, id: str, *content: nodes.Node) -> nodes.section:
    """Return a section of the page."""
    return nodes.section("", nodes.title("", title), *content, ids=[id])


def short(strategy: str) -> str:
    """Return the initials of a strategy whose name has several words."""
    words = strategy.split("_")
    return "".join(word[0] for word in words) if len(words) > 1 else strategy


def with_clauses(text: str, docname: str) -> list[nodes.Node]:
    """Return `text` with links to the clauses in it."""
    parts: list[nodes.Node] = []
    end = 0
    for found in CLAUSE_ID.finditer(text):
        link = reference("clause", found[0], found[0], docname)
        parts += [nodes.Text(text[end : found.start()]), link]
        end = found.end()
    return [*parts, nodes.Text(text[end:])]


class Numbered:
    """Numbers what cells refer to; what is the same has the same number."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.numbers: dict[object, int] = {}

    def number(self, thing: object) -> int:
        """Return the number of `thing`."""
        return self.numbers.setdefault(thing, len(self.numbers) + 1)

    def anchor(self, thing: object) -> str:
        """Return the anchor under which `thing` is explained."""
        return f"{self.prefix}-{self.number(thing)}"


class FaultPage:
    """The sections that show the table; numbers are given as the cells are made."""

    def __init__(self, table: FaultTable, judged: list[Judged], docname: str) -> None:
        self.table = table
        self.judged = judged
        self.docname = docname
        self.reasons = Numbered("fault-reason")
        self.findings = Numbered("fault-finding")
        self.found: dict[object, list[Case]] = {}

    def sections(self) -> list[nodes.Node]:
        """Return everything, in the order of the page."""
        cells = self.cells()
        shown = [
            section("Steps", "fault-steps", self.steps()),
            section("Roles", "fault-roles", meanings(self.table.roles)),
            section("Faults", "fault-faults", meanings(self.table.faults)),
            section("Verdicts", "fault-verdicts", *self.totals()),
            section("Cells", "fault-cells", self.legend(), cells),
            section("Reasons", "fault-reasons", self.reason_list()),
        ]
        if self.found:
            behind = "Behind the verdicts"
            shown.append(section(behind, "fault-findings", *self.finding_list()))
        return shown

    # What the table is made of

    def steps(self) -> nodes.Node:
        """Return the table of the steps."""
        rows = [
            [
                nodes.literal("", step.name),
                step.actor,
                step.description,
                "only with a manager" if step.managed else "always",
            ]
            for step in self.table.steps
        ]
        head = ["Step", "Performed by", "What happens", "When"]
        return table(head, rows, "fault-steps")

    def totals(self) -> list[nodes.Node]:
        """Return how many cells have each verdict, by implementation and strategy."""
        if not self.judged:
            return [missing("No report judges the table.")]
        rows = [
            [
                nodes.strong("", one.title),
                nodes.literal("", strategy),
                counted.total(),
                nodes.inline("", "", *counts(counted)),
            ]
            for one in self.judged
            for strategy, counted in one.counted().items()
        ]
        head = ["Implementation", "Strategy", "Cells run", "Verdicts"]
        return [table(head, rows, "fault-totals")]

    # The cells

    def legend(self) -> nodes.paragraph:
        """Return how a cell is read."""
        names = {name for one in self.judged for name in one.counted()}
        letters = [f"{short(s)} is {s}" for s in sorted(names) if short(s) != s]
        text = (
            "Rows are steps, with the roles that a fault can strike at each of them. "
            "Columns are faults. A cell links to its case and its clause, and has the "
            "verdict. A verdict that is a link leads to its evidence. A verdict "
            "without a strategy is that of each strategy under which the cell exists. "
            "A number alone leads to the reason why the cell has no case."
        )
        known = f" Strategies: {', '.join(letters)}." if letters else ""
        return paragraph(text + known)

    def cells(self) -> nodes.Node:
        """Return the table in a box that scrolls by itself."""
        heads = [tag("th", nodes.Text("Role"), scope="col")]
        heads += [
            tag("th", nodes.Text(fault), scope="col", title=meaning)
            for fault, meaning in self.table.faults.items()
        ]
        bodies = [self.group(step) for step in self.table.steps]
        head = tag("thead", tag("tr", *heads))
        shown = tag("table", head, *bodies, classes=["fault-table"])
        label = "The fault table; it can be scrolled"
        region = {"tabindex": "0", "role": "region", "aria_label": label}
        return tag("div", shown, classes=["wide", "fault-cells"], **region)

    def group(self, step: Step) -> nodes.Node:
        """Return the rows of one step under its name."""
        label = tag("strong", nodes.Text(f"{step.name}:"))
        about = nodes.Text(f" {step.description}, by the {step.actor}")
        where = nodes.Text(", only with a manager" if step.managed else "")
        words = tag("span", label, about, where)
        width = str(len(self.table.faults) + 1)
        head = tag("tr", tag("th", words, colspan=width, scope="rowgroup"))
        rows = [self.row(step, role) for role in self.table.roles]
        return tag("tbody", head, *rows)

    def row(self, step: Step, role: str) -> nodes.Node:
        """Return the cells of one role at a step."""
        acts = tag("small", nodes.Text("performs it"))
        name = [nodes.Text(role), *([acts] if role == step.actor else [])]
        found = [
            self.table.cells[f"{step.name}-{role}-{fault}"]
            for fault in self.table.faults
        ]
        head = tag("th", *name, scope="row")
        return tag("tr", head, *(self.cell(cell) for cell in found))

    def cell(self, cell: Cell) -> nodes.Node:
        """Return one cell."""
        test = self.table.tests.get(cell.name)
        if test is None:
            return tag("td", self.reason(cell), classes=["reason"])
        lines = [tag("div", *self.links(cell, test), classes=["case"])]
        lines += [self.verdict(one, one.of(cell, test)) for one in self.judged]
        if not self.judged:
            lines.append(tag("div", unlinked(None)))
        return tag("td", *lines)

    def reason(self, cell: Cell) -> nodes.reference:
        """Return the number of the reason why a cell has no case."""
        reason = self.table.reasons[cell.name]
        number = self.reasons.number(reason)
        words = [hidden(f"{cell.name} has no case, reason "), nodes.Text(str(number))]
        return nodes.reference(
            "",
            "",
            *words,
            refid=self.reasons.anchor(reason),
            reftitle=reason,
            internal=True,
        )

    def links(self, cell: Cell, test: Citation) -> list[nodes.Node]:
        """Return the links to the case and to the clause of a cell."""
        target = f"{test.file}#L{test.line}"
        hint = f"{cell.name}: {test.sentence}"
        case = reference("source", target, "", self.docname, hint=hint)
        case.children[0] += [nodes.Text("case"), hidden(f" {cell.name}")]
        clause = reference("clause", cell.clause, cell.clause, self.docname)
        return [case, nodes.Text(" "), clause]

    def verdict(self, one: Judged, cases: dict[str, Case | None]) -> nodes.Node:
        """Return what the reports on one implementation say of a cell."""
        alike: dict[tuple[str, str], list[str]] = {}
        for strategy, case in cases.items():
            word = boxes.verdict_words(judgement_of(case))
            alike.setdefault((word, self.finding(one, case)), []).append(strategy)
        name = tag("span", nodes.Text(one.name), classes=["implementation"])
        line = [name, nodes.Text(" ")]
        for (_, anchor), strategies in alike.items():
            if len(alike) > 1:
                line += abbreviated(strategies)
            badge = unlinked(cases[strategies[0]])
            line.append(linked(badge, anchor) if anchor else badge)
        told = ", ".join(
            " ".join([strategy, boxes.verdict_words(judgement_of(case))]).strip()
            for strategy, case in cases.items()
        )
        return tag("div", *line, title=f"{one.title}: {told}")

    def finding(self, one: Judged, case: Case | None) -> str:
        """Return the anchor of what is behind a verdict; empty where nothing is."""
        if case is None or case.verdict is Verdict.PASS:
            return ""
        if not (case.evidence or case.cause):
            return ""
        behind = (one.title, case.verdict, case.expected, case.cause, case.evidence)
        self.found.setdefault(behind, []).append(case)
        return self.findings.anchor(behind)

    # What cells refer to

    def reason_list(self) -> nodes.Node:
        """Return the reasons by their numbers."""
        items = nodes.enumerated_list(enumtype="arabic", suffix=".")
        for reason, number in self.reasons.numbers.items():
            text = nodes.paragraph("", "", *with_clauses(f"{reason}.", self.docname))
            id = f"{self.reasons.prefix}-{number}"
            items += nodes.list_item("", text, ids=[id])
        return items

    def finding_list(self) -> list[nodes.Node]:
        """Return what the reports say beyond the verdicts, what is the same once."""
        text = "The evidence of each verdict that is not a pass, with its cases."
        lead = paragraph(text)
        entries = nodes.container(classes=["verdicts"])
        for behind, cases in self.found.items():
            entries += self.finding_entry(behind, cases)
        return [lead, entries]

    def finding_entry(self, behind: tuple, cases: list[Case]) -> nodes.Node:
        """Return one finding, folded, with the cases that it is of."""
        title, _, _, cause, evidence = behind
        count = f" in {len(cases)} {'case' if len(cases) == 1 else 'cases'}: "
        name = nodes.inline("", title, classes=["implementation"])
        first = (evidence or cause).strip().partition("\n")[0]
        said = [nodes.Text(count), nodes.literal("", first)]
        line = [name, nodes.Text(" "), unlinked(cases[0]), *said]
        items = nodes.bullet_list(classes=["citations"])
        for case in cases:
            id = nodes.literal("", case.id)
            items += nodes.list_item("", nodes.paragraph("", "", id))
        behind_it: list[nodes.Node] = [paragraph(cause, ["cause"])] if cause else []
        if evidence.strip() != first:
            behind_it.append(nodes.literal_block("", evidence, language="text"))
        return folded(line, *behind_it, items, ids=[self.findings.anchor(behind)])


def meanings(named: dict[str, str]) -> nodes.definition_list:
    """Return names with their meanings."""
    terms = [(nodes.literal("", name), paragraph(text)) for name, text in named.items()]
    return definitions(terms, "fault-terms")


def judgement_of(case: Case | None) -> Judgement:
    """Return the judgement that one case is; what has no case was not run."""
    if case is None:
        return Judgement(Verdict.NOT_RUN, True, "")
    return Judgement(case.verdict, case.expected, "")


def unlinked(case: Case | None) -> nodes.inline:
    """Return the verdict of a case as symbol and words."""
    return boxes.verdict_badge(judgement_of(case))


def linked(badge: nodes.inline, anchor: str) -> nodes.reference:
    """Return a verdict as a link to what is behind it."""
    return nodes.reference("", "", badge, refid=anchor, internal=True)


def abbreviated(strategies: list[str]) -> list[nodes.Node]:
    """Return strategies by their initials."""
    parts: list[nodes.Node] = []
    for strategy in strategies:
        initials = tag("abbr", nodes.Text(short(strategy)), title=strategy)
        parts += [nodes.Text(" "), initials, nodes.Text(" ")]
    return parts


def counts(counted: dict[Verdict, int]) -> list[nodes.Node]:
    """Return how many there are of each verdict, worst first."""
    parts = []
    for verdict in Verdict:
        if counted.get(verdict):
            shown = boxes.verdict_badge(Judgement(verdict, False, ""))
            number = nodes.Text(f"{counted[verdict]} ")
            parts.append(nodes.inline("", "", number, shown))
    return between(parts, ", ")
