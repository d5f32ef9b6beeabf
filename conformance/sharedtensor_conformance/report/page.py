"""Converts a report to one self-contained HTML page without scripts or network access.

The page shows what a run prints at its end: the verdict, the table, and what is broken,
by cause. In addition, it shows all evidence, the steps of the tests, the machine and
the slowest cases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sharedtensor_conformance.clauses import Clause
from sharedtensor_conformance.evidence import Sources
from sharedtensor_conformance.examples import Example, read_steps
from sharedtensor_conformance.report.groups import Group, groups_of
from sharedtensor_conformance.report.judge import Standing, shortfalls, standing
from sharedtensor_conformance.report.needs import NOT_HERE, by_need, not_here
from sharedtensor_conformance.report.records import (
    Case,
    Machine,
    Run,
    Summary,
)
from sharedtensor_conformance.report.repeat import repeat_command
from sharedtensor_conformance.report.scope import (
    held,
    notes,
    plural,
    selected,
    stale_title,
)
from sharedtensor_conformance.report.table import Row, chapter_rows, columns
from sharedtensor_conformance.report.templating import filled, source
from sharedtensor_conformance.report.terminal import (
    label,
    others_sentence,
    standings,
    state_sentence,
    verdict_sentence,
)
from sharedtensor_conformance.report.verdicts import Verdict
from sharedtensor_conformance.sanitize import printable

SLOWEST = 10
"""The number of slowest cases to show."""

UNKNOWN = "(not in the installed spec)"

FIGURES = {
    Standing.HELD: ("✓", "held"),
    Standing.BROKEN: ("✗", "broken"),
    Standing.BLOCKED: ("✗", "blocked"),
    Standing.ADVISORY: ("✗", "broken (advisory)"),
    Standing.EXPECTED: ("✗", "broken as expected"),
    Standing.UNSUPPORTED: ("·", "unsupported"),
    Standing.NOT_RUN: ("○", "not run"),
    Standing.NOT_HERE: ("○", NOT_HERE),
}
"""The sign and the words for each standing of clauses, in the order of the page."""


def page(
    run: Run,
    cases: Sequence[Case],
    summary: Summary,
    clauses: Mapping[str, Clause],
) -> str:
    """Return the report as HTML."""
    groups = groups_of(cases, summary, clauses)
    steps = read_steps(Sources.installed(), {group.shown.test for group in groups})
    shown = [
        _group(run, summary, clauses, steps, number, group)
        for number, group in enumerate(groups, 1)
    ]
    rows = chapter_rows(run, summary, cases)
    content = {
        "name": str(run.implementation),
        "style": _style(),
        "colour": _colour(run, summary),
        "sentence": verdict_sentence(run, summary),
        "when": _when(run, summary),
        "figures": _figures(run, summary),
        "notes": list(notes(run, summary)),
        "facts": _facts(run, summary),
        "rows": [*rows, sum(rows, Row("all"))] if rows else [],
        "columns": columns(rows),
        "new": [group for group in shown if not group["expected"]],
        "known": [group for group in shown if group["expected"]],
        "unjudged": _unjudged(run, summary, clauses),
        "not_here": by_need(run, summary),
        "stale": summary.stale,
        "stale_title": stale_title(run),
        "clauses": _clauses(run, summary, clauses),
        "slowest": _slowest(cases),
    }
    return filled("report.html", content)


def _style() -> Any:
    """Return the style sheet; it is a file of this package, so it is not escaped."""
    from markupsafe import Markup

    return Markup(source("palette.css") + source("report.css"))


def _colour(run: Run, summary: Summary) -> str:
    """Return the CSS class of the verdict; with expected failures it is not green."""
    if summary.exit_status:
        return "no"
    return "known" if standings(run, summary)[Standing.EXPECTED] else "ok"


def _when(run: Run, summary: Summary) -> str:
    """Return one line with the selection, the duration and the date of the run."""
    day = run.started.partition("T")[0]
    cases = plural(summary.cases, "case")
    spec = f"specification {run.spec.version}"
    return f"{spec}, {selected(run)}: {cases} in {summary.seconds:.0f} s on {day}"


def _figures(run: Run, summary: Summary) -> list[dict[str, Any]]:
    """Return the number of clauses of each standing."""
    counts = standings(run, summary)
    figures = FIGURES | {Standing.HELD: (FIGURES[Standing.HELD][0], held(run))}
    return [
        {"standing": str(one), "sign": sign, "words": words, "count": counts[one]}
        for one, (sign, words) in figures.items()
        if counts[one]
    ]


def _group(
    run: Run,
    summary: Summary,
    clauses: Mapping[str, Clause],
    steps: Mapping[str, Example],
    number: int,
    group: Group,
) -> dict[str, Any]:
    """Return the data of group `number` for the template."""
    case, id = group.shown, group.first
    sentences = (
        others_sentence(group) if group.others else "",
        state_sentence(group),
    )
    return {
        "anchor": f"cause-{number}",
        "open": number == 1 and not group.expected,
        "expected": group.expected,
        "id": id,
        "title": clauses[id].title if id in clauses else UNKNOWN,
        "why": printable(group.cause or _first_line(case.evidence)),
        "facts": _group_facts(run, summary, group),
        "sentences": [printable(sentence) for sentence in sentences if sentence],
        "case": case,
        "evidence": printable(case.evidence) or "(no evidence was recorded)",
        "example": steps.get(case.test),
        "repeat": repeat_command(run, id, case),
    }


def _first_line(evidence: str) -> str:
    return next(iter(evidence.splitlines()), "")


def _group_facts(run: Run, summary: Summary, group: Group) -> str:
    """Return the facts about a group's clause and the verdicts of the group's cases."""
    result = summary.clauses[group.first]
    found = Counter(str(case.verdict) for case in group.cases)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in found.items())
    return f"{label(run, result, expected=group.expected)}: {counts}"


def _facts(run: Run, summary: Summary) -> list[tuple[str, str]]:
    """Return facts about the run and the machine, as terms with their values."""
    selection = run.selection
    return [
        ("Specification", run.spec.version),
        ("Selection", selected(run)),
        ("Command", " ".join([*selection.command, *selection.options])),
        ("Claims", ", ".join(run.implementation.claims)),
        ("Cases", f"{summary.cases} of {run.planned} planned"),
        ("Started", run.started),
        ("Duration", f"{summary.seconds:.1f} s"),
        ("Machine", _machine(run.machine)),
    ]


def _machine(machine: Machine) -> str:
    processors = "1 processor" if machine.cpus == 1 else f"{machine.cpus} processors"
    said = [
        f"Python {machine.python}",
        machine.platform,
        f"kernel {machine.kernel}",
        processors,
        "privileged" if machine.privileged else "not privileged",
        f"{'private' if machine.private_shm else 'shared'} /dev/shm",
    ]
    return ", ".join(said)


def _unjudged(
    run: Run, summary: Summary, clauses: Mapping[str, Clause]
) -> list[tuple[str, str]]:
    selection = run.selection
    short = shortfalls(run, summary, strict=selection.strict, full=selection.full)
    return [
        (id, clauses[id].title if id in clauses else UNKNOWN) for id in short.unjudged
    ]


def _clauses(
    run: Run, summary: Summary, clauses: Mapping[str, Clause]
) -> list[dict[str, str]]:
    words = {Verdict.PASS: held(run)}
    return [
        {
            "id": id,
            "title": clauses[id].title if id in clauses else UNKNOWN,
            "standing": str(standing(run, result, strict=run.selection.strict)),
            "words": not_here(result.needs)
            if result.needs
            else words.get(result.verdict, ""),
            "level": result.level,
            "profile": result.profile,
            "cases": ", ".join(f"{n} {verdict}" for verdict, n in result.cases.items()),
        }
        for id, result in summary.clauses.items()
    ]


def _slowest(cases: Sequence[Case]) -> list[Case]:
    timed = [case for case in cases if case.seconds]
    return sorted(timed, key=lambda case: -case.seconds)[:SLOWEST]
