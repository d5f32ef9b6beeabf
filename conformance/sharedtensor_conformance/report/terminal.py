"""Shows a report as text: a table, the broken clauses, and the verdict in one sentence.

The text depends only on the report, so that a run and ``shared-tensor-spec report``
print the same. It has colours only on a terminal.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterable, Iterator
from itertools import groupby

from sharedtensor_conformance.report import scope, sentences
from sharedtensor_conformance.report.groups import Group, basic_first
from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.run_view import RunView
from sharedtensor_conformance.report.scope import plural
from sharedtensor_conformance.report.signatures import ALSO_LEFT
from sharedtensor_conformance.report.templating import filled
from sharedtensor_conformance.report.verdicts import Verdict

EVIDENCE_LINES = 20
"""How many lines of evidence a group shows; the report has all of them."""

FAULT_LINES = 6
"""How many lines of a traceback are shown for a fault of the suite or the adapter."""

IN_FULL = 10
"""How many groups are shown with so much evidence; the others with its first line."""

MOST_LEAKS = 2
"""How many leaks are shown of a case that failed and also left something."""

WITH_TITLES = 10
"""Unjudged clauses are shown with their titles if there are at most this many."""

COLOURS = {"bold": "1", "red": "31", "green": "32", "yellow": "33"}
"""The numbers by which a terminal knows them."""


def render(
    view: RunView,
    width: int = 80,
    *,
    colour: bool = False,
    file: str | None = None,
    whole: bool = False,
) -> str:
    """Return the report as text of at most `width` columns, unless a word is longer.

    Args:
        view: the run.
        width: the number of columns of the terminal.
        colour: whether to use colours.
        file: the file of the report, if there is one.
        whole: whether to show all evidence of each group.
    """
    by_clause = groupby(view.groups, lambda one: (one.first, one.expected))
    with_evidence = [group for group in view.groups if not group.cause]
    brief = set(map(id, with_evidence[IN_FULL:]))
    where = "; --report=FILE keeps them"
    if file:
        where = f": shared-tensor-spec report {shlex.quote(file)} --all-evidence"

    def evidence(group: Group) -> Iterable[str]:
        if whole:
            return _lines(group.shown)
        return _evidence(group.shown, where, brief=id(group) in brief)

    content = {
        "view": view,
        "sentences": sentences,
        "heading": _heading(view),
        "table": _table(view),
        "by_clause": [list(groups) for _, groups in by_clause],
        "evidence": evidence,
        "with_titles": WITH_TITLES,
        "basic_first": basic_first,
        "printable": _printable,
        "wrapped": lambda text, *indents: _wrapped(text, max(width, 20), *indents),
        "painted": lambda text, code: _painted(text, code) if colour else text,
    }
    return filled("report.txt", content)


def _painted(text: str, colour: str) -> str:
    return f"\033[{COLOURS[colour]}m{text}\033[0m"


def _evidence(case: Case, where: str, *, brief: bool) -> Iterator[str]:
    """Yield the lines of evidence to show of a case; `where` says where the rest is."""
    lines = _lines(case)
    fault = case.verdict is Verdict.ERROR  # the last lines say where it happened
    most = 1 if brief else FAULT_LINES if fault else EVIDENCE_LINES
    # Of a history the end explains the failure, which stands at the beginning.
    first = 0 if fault else (most + 1) // 2
    omitted = max(len(lines) - most, 0)
    for number, line in enumerate(lines):
        if number == first and omitted:
            yield f"({plural(omitted, 'more line')}{where})"
        if not first <= number < first + omitted:
            yield _with_few_leaks(line)


def _lines(case: Case) -> list[str]:
    return case.evidence.splitlines() or ["(no evidence was recorded)"]


def _with_few_leaks(line: str) -> str:
    """Return a line of evidence; one about leaks with the first of them alone.

    The clauses about leaks have a case that tells all of them.
    """
    leaks = line.split("; ")
    if not line.startswith(ALSO_LEFT.strip()) or len(leaks) <= MOST_LEAKS:
        return line
    return "; ".join([*leaks[:MOST_LEAKS], f"and {len(leaks) - MOST_LEAKS} more"])


def _heading(view: RunView) -> str:
    run, summary = view.run, view.summary
    devices = sorted({case.device for case in view.cases}) or [run.selection.device]
    follow = ""
    if count := summary.verdicts.get(Verdict.FOLLOWS, 0):
        verb = "follows" if count == 1 else "follow"
        follow = f" ({count} {verb} from known deviations, not run)"
    return (
        f"{view.name}, spec {run.spec.version}, {scope.selected(run)}, on "
        f"{' and '.join(devices)}: {plural(summary.cases, 'case')}{follow} in "
        f"{summary.seconds:.1f}s"
    )


def _table(view: RunView) -> list[str]:
    """Return the lines of the table, the head first, and the sum last."""
    names = view.columns
    rows = [[row.text(n) if row[n] else "." for n in names] for row in view.rows]
    cells = [names, *rows] if rows else []
    first = max((len(line[0]) for line in cells), default=0)
    widths = [first, *map(len, names[1:])]
    return [
        "  ".join([line[0].ljust(first), *map(str.rjust, line[1:], widths[1:])])
        for line in cells
    ]


def _wrapped(text: str, width: int, first: str = "", others: str = "") -> str:
    """Return `text` in lines; words are never split."""
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines) or first.rstrip()


def _printable(line: str) -> str:
    # Evidence can contain output of a judged process: escape control characters.
    return re.sub(
        r"[\x00-\x1f\x7f-\x9f]",
        lambda found: f"\\x{ord(found[0]):02x}",
        line.expandtabs(4),
    )
