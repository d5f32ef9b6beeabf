"""Converts a report to Markdown, for the job summaries of CI systems."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence

from sharedtensor_conformance.clauses import Clause
from sharedtensor_conformance.report.groups import Group, groups_of
from sharedtensor_conformance.report.needs import NOT_HERE, by_need, reason
from sharedtensor_conformance.report.records import Case, Run, Summary
from sharedtensor_conformance.report.repeat import repeat_command
from sharedtensor_conformance.report.scope import notes, stale_title
from sharedtensor_conformance.report.table import Row, chapter_rows, columns
from sharedtensor_conformance.report.terminal import (
    facts,
    others_sentence,
    state_sentence,
    verdict_sentence,
)


def markdown(
    run: Run, cases: Sequence[Case], summary: Summary, clauses: Mapping[str, Clause]
) -> str:
    """Return the verdict, the table and the broken clauses as Markdown."""
    blocks = [
        f"### Conformance of {_escaped(str(run.implementation))}",
        _escaped(verdict_sentence(run, summary)),
        *map(_escaped, notes(run, summary)),
        _table(chapter_rows(run, summary, cases)),
        *_groups(run, cases, summary, clauses),
        *map(_escaped, _not_here(run, summary)),
        *(
            f"- {stale_title(run).lower()}: {_escaped(sentence)}"
            for sentence in summary.stale
        ),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _table(rows: list[Row]) -> str:
    if not rows:
        return ""
    names = columns(rows)
    head = " | ".join(name.replace("_", " ") for name in names)
    rule = " | ".join(["---", *["---:"] * (len(names) - 1)])
    body = [_line(row, names) for row in [*rows, sum(rows, Row("all"))]]
    return "\n".join([f"| {head} |", f"| {rule} |", *body])


def _line(row: Row, names: list[str]) -> str:
    return f"| {' | '.join(_escaped(row.text(name)) for name in names)} |"


def _groups(
    run: Run, cases: Sequence[Case], summary: Summary, clauses: Mapping[str, Clause]
) -> Iterator[str]:
    for group in groups_of(cases, summary, clauses):
        id = group.first
        title = clauses[id].title if id in clauses else "(not in the installed spec)"
        said = html.escape(facts(run, summary.clauses[id], expected=group.expected))
        head = f"<b>{id}</b> {html.escape(title)} ({said})"
        yield _details(run, head, group)


def _not_here(run: Run, summary: Summary) -> Iterator[str]:
    for need, ids in by_need(run, summary).items():
        yield f"- {NOT_HERE}: {', '.join(ids)}, since {reason([need])}"


def _details(run: Run, head: str, group: Group) -> str:
    lines = [f"<details><summary>{head}</summary>", ""]
    others = others_sentence(group) if group.others else ""
    for text in (group.cause, others, state_sentence(group)):
        if text:
            lines += [f"{_escaped(text)}\n"]
    shown = group.shown
    command = repeat_command(run, group.first, shown)
    lines += [fenced(f"{shown.id}\n{shown.evidence}\n\n{command}")]
    return "\n".join([*lines, "", "</details>"])


def fenced(text: str) -> str:
    """Return `text` in a code block that nothing in it can close."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_|\[\]])", r"\\\1", html.escape(text, quote=False))
