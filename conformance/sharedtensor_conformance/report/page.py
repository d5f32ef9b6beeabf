"""Converts a report to one self-contained HTML page without scripts or network access.

The page shows what a run prints at its end: the verdict, the table, and what is broken,
by cause. In addition, it shows all evidence, the steps of the tests, the machine and
the slowest cases.
"""

from __future__ import annotations

from sharedtensor_conformance.evidence import Sources
from sharedtensor_conformance.examples import read_steps
from sharedtensor_conformance.report import scope, sentences
from sharedtensor_conformance.report.groups import Group
from sharedtensor_conformance.report.judge import Standing
from sharedtensor_conformance.report.known import Breach, in_number
from sharedtensor_conformance.report.needs import NOT_HERE, not_here
from sharedtensor_conformance.report.run_view import OF_BREACH, RunView
from sharedtensor_conformance.report.templating import filled, safe, source
from sharedtensor_conformance.sanitize import printable

SLOWEST = 10
"""The number of slowest cases to show."""

SIGNS = {
    Standing.HELD: "✓",
    Standing.NEW: "✗",
    Standing.BLOCKED: "✗",
    Standing.ADVISORY: "✗",
    Standing.BREAKS_DOCS: "✗",
    Standing.DIFFERS: "≠",
    Standing.KNOWN: "✗",
    Standing.NOT_CLAIMED: "·",
    Standing.NOT_RUN: "○",
    Standing.NOT_HERE: "○",
}
"""The sign for each standing of clauses, in the order of the page."""

WORDS = {
    Standing.NEW: "broken (new)",
    Standing.ADVISORY: "broken (advisory)",
    Standing.BREAKS_DOCS: Breach.DOCUMENTATION,
    Standing.DIFFERS: Breach.SPECIFICATION,
    Standing.KNOWN: "broken (known)",
    Standing.NOT_HERE: NOT_HERE,
}
"""The words for a standing, where they are not its name."""


def page(view: RunView) -> str:
    """Return the report as HTML."""
    tests = {group.shown.test for group in view.groups}
    words = WORDS | {Standing.HELD: scope.held(view.run)}
    numbered = list(enumerate(view.groups, 1))
    content = {
        "view": view,
        "run": view.run,
        "scope": scope,
        "sentences": sentences,
        "style": safe(source("palette.css") + source("report.css")),
        "signs": SIGNS,
        "said": lambda one: words.get(one, one),
        "in_number": in_number,
        "new": [pair for pair in numbered if not pair[1].expected],
        "known": [pair for pair in numbered if pair[1].expected],
        "steps": read_steps(Sources.installed(), tests),
        "kind": _kind,
        "not_here": not_here,
        "printable": printable,
        "slowest": SLOWEST,
    }
    return filled("report.html", content)


def _kind(view: RunView, group: Group) -> str:
    """Return the CSS class of a group of failures."""
    if not group.expected:
        return "new"
    standing = OF_BREACH[view.known.breach(view.known.entry(group.shown))]
    return standing.replace(" ", "-")
