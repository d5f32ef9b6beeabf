"""Turns a clause, and everything that backs it, into nodes."""

from __future__ import annotations

from docutils import nodes
from elements import badge, between, folded, missing, paragraph
from sharedtensor_conformance.clauses import Clause
from sharedtensor_conformance.definitions import Place
from sharedtensor_conformance.evidence import Citation
from sharedtensor_conformance.examples import Example
from sharedtensor_conformance.report.causes import Promise
from sharedtensor_conformance.report.needs import NOT_HERE, reason
from sharedtensor_conformance.report.records import STAND_INS
from sharedtensor_conformance.report.verdicts import Verdict

from clauses.domain import reference
from clauses.known import HELD_THIS_TIME, Deviation
from clauses.reports import Column, Judgement

SYMBOLS = {
    Verdict.PASS: "✓",
    Verdict.FAIL: "✗",
    Verdict.CRASH: "✗",
    Verdict.HANG: "✗",
    Verdict.ERROR: "!",
    Verdict.BLOCKED: "■",
    Verdict.FOLLOWS: "✗",
    Verdict.NOT_RUN: "○",
    Verdict.UNSUPPORTED: "·",
}
WORDS = {Verdict.NOT_RUN: "not run", Verdict.UNSUPPORTED: "not claimed"}
NOT_SHOWN = (
    "This deviation shows in some runs only, and did not show in this one. "
    "The program shows it every time, so the clause counts as broken."
)


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


def links(citations: list[Citation], docname: str, otherwise: str) -> nodes.Node:
    """Return links to the places that cite a clause, or `otherwise`."""
    if not citations:
        return missing(otherwise)
    items = nodes.bullet_list(classes=["citations"])
    for citation in citations:
        items += nodes.list_item("", link_to(citation, docname))
    return items


def example_of(example: Example | None, docname: str) -> nodes.Node:
    """Return the summary of a test, with its steps folded below it."""
    if example is None:
        return missing("no test cites this clause")
    if not example.steps:
        return paragraph(example.summary)
    steps = nodes.literal_block("", example.steps, language="python")
    line = [nodes.Text("Steps of "), place_link(example.test, docname)]
    called = [place_link(place, docname) for place in example.calls]
    if called:
        line += [nodes.Text(", which needs "), *between(called, ", ")]
    told = nodes.paragraph("", "", *line, nodes.Text("."))
    return folded([nodes.Text(example.summary)], steps, told)


def place_link(place: Place, docname: str) -> nodes.Node:
    """Return the link to a place, by its name."""
    return source_link(place, nodes.literal("", place.name), docname)


def code(citations: list[Citation], clause: Clause, docname: str) -> nodes.Node:
    """Return links to the code that implements a clause, or why there is none."""
    if clause.no_code and not citations:
        return paragraph(f"No code: {clause.no_code}")
    return links(citations, docname, "no code of the reference cites this clause")


def link_to(citation: Citation, docname: str) -> nodes.paragraph:
    """Return the link to one place, as a sentence or as a name with its sentence."""
    is_test = citation.sentence and citation.name.startswith("test_")
    name = citation.sentence if is_test else citation.name
    shown = nodes.Text(name) if is_test else nodes.literal("", name)
    line = nodes.paragraph("", "", source_link(citation, shown, docname))
    line += nodes.Text("" if is_test else f" {citation.sentence}")
    if citation.replaces:
        places = [
            source_link(place, nodes.literal("", place.name), docname)
            for place in citation.replaces
        ]
        line += [nodes.Text(" Replaces "), *between(places, ", "), nodes.Text(".")]
    return line


def source_link(place: Citation | Place, shown: nodes.Node, docname: str) -> nodes.Node:
    """Return a link to a place, shown as `shown`; that alone for an unknown place."""
    if not place.file:
        return shown
    link = reference("source", f"{place.file}#L{place.line}", "", docname)
    link.children[0] += shown
    return link


def verdict_words(judgement: Judgement) -> str:
    """Return a verdict in words."""
    known = (judgement.broken and judgement.expected) or judgement.not_shown
    return f"{word_of(judgement)}, known" if known else word_of(judgement)


def word_of(judgement: Judgement) -> str:
    """Return a verdict as a word; a deviation that did not show is no pass."""
    if judgement.not_shown:
        return HELD_THIS_TIME
    if judgement.needs:
        return NOT_HERE
    return WORDS.get(judgement.verdict, judgement.verdict.value)


def note_of(judgement: Judgement) -> str:
    """Return why a verdict counts as it does, where its cause is not in the report."""
    if judgement.needs:
        return f"Not judged, since {reason(judgement.needs)}."
    return NOT_SHOWN if judgement.not_shown else ""


def symbol_of(judgement: Judgement) -> str:
    """Return the sign of a verdict."""
    return SYMBOLS[colour_of(judgement)]


def colour_of(judgement: Judgement) -> Verdict:
    """Return the verdict that a judgement is shown like."""
    return Verdict.FAIL if judgement.not_shown else judgement.verdict


def stand_ins(judgement: Judgement) -> list[str]:
    """Return the devices that stood in for a real one where a clause was judged."""
    return sorted(STAND_INS & judgement.devices)


def verdict_badge(judgement: Judgement) -> nodes.inline:
    """Return a verdict as symbol and words; the colour only repeats them."""
    shown = badge("", "verdict", f"verdict-{colour_of(judgement).value}")
    shown += nodes.inline("", symbol_of(judgement), classes=["symbol"])
    shown += nodes.Text(f" {verdict_words(judgement)}")
    return shown


def unjudged() -> nodes.inline:
    """Return the verdict on what a report does not name."""
    return verdict_badge(Judgement(Verdict.NOT_RUN, True, ""))


def anchor_of(report: Column, clause: str) -> str:
    """Return the anchor of what `report` says of `clause`."""
    return f"{clause}-{report.slug}"


def verdicts(reports: list[Column], clause: Clause, docname: str) -> nodes.Node:
    """Return what each report says of `clause`."""
    if not reports:
        return missing("no report is committed")
    entries = nodes.container(classes=["verdicts"])
    for report in reports:
        entries += verdict_of(report, clause, docname)
    return entries


def verdict_of(report: Column, clause: Clause, docname: str) -> nodes.Node:
    """Return what one report says of `clause`, with its evidence folded."""
    judgement = report.judgements.get(clause.id)
    name = nodes.inline("", report.title, classes=["implementation"])
    if judgement is None:
        text = nodes.Text(": the report does not name this clause")
        return nodes.paragraph("", "", name, nodes.Text(" "), unjudged(), text)
    line = [name, nodes.Text(" "), verdict_badge(judgement), tally(judgement)]
    found = evidence_of(judgement, clause, docname)
    if not found:
        return nodes.paragraph("", "", *line)
    found[0]["ids"].append(anchor_of(report, clause.id))
    return folded(line, *found)


def tally(judgement: Judgement) -> nodes.Text:
    """Return how the cases of a clause are spread over the verdicts."""
    total = sum(judgement.cases.values())
    counted = judgement.cases[judgement.verdict]
    share = f"{total}" if counted == total else f"{counted} of {total}"
    cases = "case" if total == 1 else "cases"
    devices = ", ".join(sorted(judgement.devices - {"cpu"}))
    where = f", device {devices}" if devices else ""
    return nodes.Text(f" in {share} {cases}{where}")


def known_of(cause: Deviation, docname: str) -> list[nodes.Element]:
    """Return since when a deviation is known, its program and its thread."""
    parts: list[nodes.Node] = []
    if cause.since:
        parts.append(nodes.Text(f"known since {cause.since}"))
    if cause.program:
        link = reference("source", cause.program, "program that shows it", docname)
        parts.append(link)
    if cause.thread:
        text = "thread of its project"
        parts.append(nodes.reference("", text, refuri=cause.thread, internal=False))
    return [nodes.paragraph("", "", *between(parts, ", "))] if parts else []


def source_of(promise: Promise) -> nodes.paragraph:
    """Return the link to the documentation that makes a promise."""
    link = nodes.reference("", "said here", refuri=promise.source, internal=False)
    return nodes.paragraph("", "", link, classes=["answers"])


def has_evidence(judgement: Judgement, clause: Clause) -> bool:
    """Return whether something is behind a verdict."""
    return bool(
        judgement.causes
        or judgement.not_shown
        or judgement.evidence
        or is_of_another_text(judgement, clause)
    )


def is_of_another_text(judgement: Judgement, clause: Clause) -> bool:
    """Return whether another text was judged; of what is not claimed none was."""
    is_judged = judgement.verdict is not Verdict.UNSUPPORTED
    return is_judged and judgement.text_hash != clause.hash


def evidence_of(
    judgement: Judgement, clause: Clause, docname: str
) -> list[nodes.Element]:
    """Return the causes, the evidence, and whether another text was judged."""
    found: list[nodes.Element] = []
    if is_of_another_text(judgement, clause):
        found.append(paragraph("Judged on another text of this clause."))
    if note := note_of(judgement):
        found.append(paragraph(note))
    for cause in (*judgement.causes, *judgement.not_shown):
        found.append(paragraph(cause.cause, ["cause"]))
        found += known_of(cause, docname)
    for case, text in judgement.evidence:
        found.append(nodes.paragraph("", "", nodes.literal("", case)))
        found.append(nodes.literal_block("", text, language="text"))
    return found
