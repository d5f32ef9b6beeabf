"""A report as Markdown, for the summary page that CI systems show beside a job."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence

from sharedtensor_conformance.clauses import Clause
from sharedtensor_conformance.report.records import Case, ClauseResult, Run, Summary
from sharedtensor_conformance.report.scope import notes
from sharedtensor_conformance.report.terminal import (
    Row,
    broken_clauses,
    chapter_rows,
    columns,
    repeat_command,
    shortest,
    verdict_sentence,
)


def markdown(
    run: Run, cases: Sequence[Case], summary: Summary, clauses: Mapping[str, Clause]
) -> str:
    """Return the end of a run as Markdown: sentence, table, and what is broken."""
    blocks = [
        f"### Conformance of {_escaped(str(run.implementation))}",
        _escaped(verdict_sentence(run, summary)),
        *map(_escaped, notes(run, summary)),
        _table(chapter_rows(summary, cases)),
        *_broken(run, cases, summary, clauses),
        *(f"- stale: {_escaped(sentence)}" for sentence in summary.stale),
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


def _broken(
    run: Run, cases: Sequence[Case], summary: Summary, clauses: Mapping[str, Clause]
) -> Iterator[str]:
    for id, result in broken_clauses(summary):
        title = clauses[id].title if id in clauses else "(not in the installed spec)"
        its_cases = [c for c in cases if id in c.clauses and c.verdict.broken]
        yield _details(run, id, title, result, its_cases)


def _details(
    run: Run, id: str, title: str, result: ClauseResult, cases: list[Case]
) -> str:
    known = "expected" if result.expected else "not expected"
    label = ", simulated" if "simulated" in result.devices else ""
    head = f"<b>{id}</b> {html.escape(title)} ({result.level}, {result.verdict}, "
    lines = [f"<details><summary>{head}{known}{label})</summary>", ""]
    causes = dict.fromkeys(case.cause for case in cases if case.cause)
    lines += [f"{_escaped(cause)}\n" for cause in causes]
    if vanished := sum(case.state_dependent for case in cases):
        lines += [f"State-dependent: {vanished} of {len(cases)} held when repeated.\n"]
    if shown := shortest(cases):
        command = repeat_command(run, id, shown)
        lines += [fenced(f"{shown.id}\n{shown.evidence}\n\n{command}")]
    return "\n".join([*lines, "", "</details>"])


def fenced(text: str) -> str:
    """Return `text` in a code block that nothing in it can close."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_|\[\]])", r"\\\1", html.escape(text, quote=False))
