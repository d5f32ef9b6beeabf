"""Turns a clause, and everything that backs it, into nodes."""

from __future__ import annotations

from collections.abc import Iterable

from docutils import nodes
from sharedtensor_conformance.clauses import Clause
from sharedtensor_conformance.report.verdicts import Verdict
from sphinx.application import Sphinx

from clauses.domain import reference
from clauses.evidence import Citation
from clauses.reports import Column, Judgement

SYMBOLS = {
    Verdict.PASS: "✓",
    Verdict.FAIL: "✗",
    Verdict.CRASH: "✗",
    Verdict.HANG: "✗",
    Verdict.ERROR: "!",
    Verdict.BLOCKED: "■",
    Verdict.NOT_RUN: "○",
    Verdict.UNSUPPORTED: "·",
}
WORDS = {Verdict.NOT_RUN: "not run", Verdict.UNSUPPORTED: "not claimed"}


class details(nodes.General, nodes.Element):
    """Content that is folded under a line of text."""


class summary(nodes.General, nodes.TextElement):
    """The line of text that `details` are folded under."""


def badge(text: str, *classes: str) -> nodes.inline:
    """Return a short labelled word."""
    return nodes.inline("", text, classes=["badge", *classes])


def heading(clause: Clause) -> nodes.title:
    """Return the id and the title of a clause."""
    title = nodes.title()
    title += nodes.inline("", clause.id, classes=["clause-id"])
    title += nodes.Text(f" {clause.title}")
    return title


def properties(clause: Clause, docname: str, source: str) -> nodes.paragraph:
    """Return the line with level, profile, what is observed, promises and hash."""
    line = nodes.paragraph(classes=["clause-properties"])
    line += badge(clause.level, f"level-{clause.level.lower()}")
    line += labelled("profile", nodes.literal("", clause.profile))
    line += labelled("observes", nodes.inline("", clause.observes))
    answers = [reference("promise", id, id, docname) for id in clause.promises]
    if answers:
        line += labelled("answers", *between(answers, " "))
    link = reference("source", source, "", docname)
    link.children[0] += nodes.literal("", clause.hash)
    line += labelled("text", link)
    return line


def labelled(label: str, *content: nodes.Node) -> nodes.inline:
    """Return `content` after its label."""
    part = nodes.inline(classes=["property"])
    part += [nodes.inline("", label, classes=["label"]), nodes.Text(" "), *content]
    return part


def between(items: Iterable[nodes.Node], separator: str) -> list[nodes.Node]:
    """Return `items` with text between them."""
    parts = [part for item in items for part in (nodes.Text(separator), item)]
    return parts[1:]


def backing(rows: Iterable[tuple[str, nodes.Node]]) -> nodes.definition_list:
    """Return the list of what backs a clause, one entry for each kind."""
    entries = nodes.definition_list(classes=["clause-backing"])
    for name, content in rows:
        definition = nodes.definition("", content)
        entries += nodes.definition_list_item("", nodes.term("", name), definition)
    return entries


def links(citations: list[Citation], docname: str, missing: str) -> nodes.Node:
    """Return links to the places that cite a clause, or say that there is none."""
    if not citations:
        return nodes.paragraph("", missing, classes=["missing"])
    items = nodes.bullet_list(classes=["citations"])
    for citation in citations:
        items += nodes.list_item("", link_to(citation, docname))
    return items


def link_to(citation: Citation, docname: str) -> nodes.paragraph:
    """Return the link to one place, as a sentence or as a name with its sentence."""
    target = f"{citation.file}#L{citation.line}"
    is_test = citation.sentence and citation.name.startswith("test_")
    link = reference("source", target, "", docname)
    name = citation.sentence if is_test else citation.name
    link.children[0] += nodes.Text(name) if is_test else nodes.literal("", name)
    after = "" if is_test else f" {citation.sentence}"
    return nodes.paragraph("", "", link, nodes.Text(after))


def verdict_words(judgement: Judgement) -> str:
    """Return a verdict in words."""
    word = WORDS.get(judgement.verdict, judgement.verdict.value)
    return f"{word}, known" if judgement.broken and judgement.expected else word


def verdict_badge(judgement: Judgement) -> nodes.inline:
    """Return a verdict as symbol and words; the colour only repeats them."""
    shown = badge("", "verdict", f"verdict-{judgement.verdict.value}")
    shown += nodes.inline("", SYMBOLS[judgement.verdict], classes=["symbol"])
    shown += nodes.Text(f" {verdict_words(judgement)}")
    return shown


def unjudged() -> nodes.inline:
    """Return the verdict on what a report does not name."""
    return verdict_badge(Judgement(Verdict.NOT_RUN, True, ""))


def anchor_of(report: Column, clause: str) -> str:
    """Return the anchor of what `report` says of `clause`."""
    return f"{clause}-{nodes.make_id(report.name)}"


def verdicts(reports: list[Column], clause: Clause) -> nodes.Node:
    """Return what each report says of `clause`."""
    if not reports:
        return nodes.paragraph("", "no report is committed", classes=["missing"])
    entries = nodes.container(classes=["verdicts"])
    for report in reports:
        entries += verdict_of(report, clause)
    return entries


def verdict_of(report: Column, clause: Clause) -> nodes.Node:
    """Return what one report says of `clause`, with its evidence folded."""
    judgement = report.judgements.get(clause.id)
    name = nodes.inline("", report.title, classes=["implementation"])
    if judgement is None:
        text = nodes.Text(": the report does not name this clause")
        return nodes.paragraph("", "", name, nodes.Text(" "), unjudged(), text)
    line = [name, nodes.Text(" "), verdict_badge(judgement), tally(judgement)]
    folded = evidence_of(judgement, clause)
    if not folded:
        return nodes.paragraph("", "", *line)
    folded[0]["ids"].append(anchor_of(report, clause.id))
    return details("", summary("", "", *line), *folded)


def tally(judgement: Judgement) -> nodes.Text:
    """Return how the cases of a clause are spread over the verdicts."""
    total = sum(judgement.cases.values())
    counted = judgement.cases[judgement.verdict]
    share = f"{total}" if counted == total else f"{counted} of {total}"
    cases = "case" if total == 1 else "cases"
    devices = ", ".join(sorted(judgement.devices - {"cpu"}))
    where = f", device {devices}" if devices else ""
    return nodes.Text(f" in {share} {cases}{where}")


def evidence_of(judgement: Judgement, clause: Clause) -> list[nodes.Element]:
    """Return the causes, the evidence, and whether another text was judged."""
    found: list[nodes.Element] = []
    if judgement.text_hash != clause.hash:
        found.append(nodes.paragraph("", "Judged on another text of this clause."))
    for cause in judgement.causes:
        found.append(nodes.paragraph("", cause, classes=["cause"]))
    for case, text in judgement.evidence:
        found.append(nodes.paragraph("", "", nodes.literal("", case)))
        found.append(nodes.literal_block("", text, language="text"))
    return found


def open_tag(self, node: nodes.Element) -> None:
    """Write the beginning of an element that is called as its node is."""
    self.body.append(self.starttag(node, type(node).__name__, ""))


def close_tag(self, node: nodes.Element) -> None:
    """Write the end of an element."""
    self.body.append(f"</{type(node).__name__}>")


def setup(app: Sphinx) -> None:
    """Register the nodes for folded content."""
    for kind in (details, summary):
        app.add_node(kind, html=(open_tag, close_tag))
