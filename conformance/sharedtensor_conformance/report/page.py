"""Converts a report to one self-contained HTML page without scripts or network access.

The page shows what a run prints at its end: the verdict, the table, and what is broken,
by cause. In addition, it shows all evidence, the steps of the tests, the machine and
the slowest cases.
"""

from __future__ import annotations

from typing import Any

from sharedtensor_conformance.evidence import Sources
from sharedtensor_conformance.examples import read_steps
from sharedtensor_conformance.report import sentences
from sharedtensor_conformance.report.groups import Group
from sharedtensor_conformance.report.judge import Standing
from sharedtensor_conformance.report.known import Breach
from sharedtensor_conformance.report.needs import NOT_HERE, not_here
from sharedtensor_conformance.report.records import Case, Machine
from sharedtensor_conformance.report.run_view import OF_BREACH, RunView
from sharedtensor_conformance.report.scope import held, plural, selected
from sharedtensor_conformance.report.templating import filled, safe, source
from sharedtensor_conformance.sanitize import printable

SLOWEST = 10
"""The number of slowest cases to show."""

FIGURES = {
    Standing.HELD: ("✓", "held"),
    Standing.NEW: ("✗", "broken (new)"),
    Standing.BLOCKED: ("✗", "blocked"),
    Standing.ADVISORY: ("✗", "broken (advisory)"),
    Standing.BREAKS_DOCS: ("✗", Breach.DOCUMENTATION),
    Standing.DIFFERS: ("≠", Breach.SPECIFICATION),
    Standing.KNOWN: ("✗", "broken (known)"),
    Standing.NOT_CLAIMED: ("·", "not claimed"),
    Standing.NOT_RUN: ("○", "not run"),
    Standing.NOT_HERE: ("○", NOT_HERE),
}
"""The sign and the words for each standing of clauses, in the order of the page."""


def page(view: RunView) -> str:
    """Return the report as HTML."""
    tests = {group.shown.test for group in view.groups}
    numbered = list(enumerate(view.groups, 1))
    content = {
        "view": view,
        "sentences": sentences,
        "style": safe(source("palette.css") + source("report.css")),
        "colour": _colour(view),
        "when": _when(view),
        "figures": _figures(view),
        "facts": _facts(view),
        "new": [pair for pair in numbered if not pair[1].expected],
        "known": [pair for pair in numbered if pair[1].expected],
        "steps": read_steps(Sources.installed(), tests),
        "why": _why,
        "kind": _kind,
        "words": lambda id: _words(view, id),
        "printable": printable,
        "slowest": _slowest(view),
    }
    return filled("report.html", content)


def _colour(view: RunView) -> str:
    """Return the CSS class of the verdict; with known deviations it is not green."""
    if view.summary.exit_status:
        return "no"
    return "known" if view.known_count else "ok"


def _when(view: RunView) -> str:
    """Return one line with the selection, the duration and the date of the run."""
    run, summary = view.run, view.summary
    day = run.started.partition("T")[0]
    cases = plural(summary.cases, "case")
    spec = f"specification {run.spec.version}"
    return f"{spec}, {selected(run)}: {cases} in {summary.seconds:.0f} s on {day}"


def _figures(view: RunView) -> list[dict[str, Any]]:
    """Return the number of clauses of each standing."""
    figures = FIGURES | {Standing.HELD: (FIGURES[Standing.HELD][0], held(view.run))}
    return [
        {"standing": str(one), "sign": sign, "words": words, "count": view.counts[one]}
        for one, (sign, words) in figures.items()
        if view.counts[one]
    ]


def _kind(view: RunView, group: Group) -> str:
    """Return the CSS class of a group of failures."""
    if not group.expected:
        return "new"
    standing = OF_BREACH[view.known.breach(view.known.entry(group.shown))]
    return standing.replace(" ", "-")


def _why(group: Group) -> str:
    """Return the cause of a group, or the first line of its evidence."""
    lines = group.shown.evidence.splitlines()
    return printable(group.cause or next(iter(lines), ""))


def _facts(view: RunView) -> list[tuple[str, str]]:
    """Return facts about the run and the machine, as terms with their values."""
    run, selection = view.run, view.run.selection
    return [
        ("Specification", run.spec.version),
        ("Selection", selected(run)),
        ("Command", " ".join([*selection.command, *selection.options])),
        ("Claims", ", ".join(run.implementation.claims)),
        ("Cases", f"{view.summary.cases} of {run.planned} planned"),
        ("Started", run.started),
        ("Duration", f"{view.summary.seconds:.1f} s"),
        ("Machine", _machine(run.machine)),
    ]


def _machine(machine: Machine) -> str:
    said = [
        f"Python {machine.python}",
        machine.platform,
        f"kernel {machine.kernel}",
        plural(machine.cpus, "processor"),
        "privileged" if machine.privileged else "not privileged",
        f"{'private' if machine.private_shm else 'shared'} /dev/shm",
    ]
    return ", ".join(said)


def _words(view: RunView, id: str) -> str:
    """Return the words for the standing of a clause."""
    result = view.summary.clauses[id]
    if result.needs:
        return not_here(result.needs)
    standing = view.standing(id)
    return held(view.run) if standing is Standing.HELD else FIGURES[standing][1]


def _slowest(view: RunView) -> list[Case]:
    timed = [case for case in view.cases if case.seconds]
    return sorted(timed, key=lambda case: -case.seconds)[:SLOWEST]
