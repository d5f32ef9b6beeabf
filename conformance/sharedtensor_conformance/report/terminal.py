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
from sharedtensor_conformance.report.needs import NOT_HERE
from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.run_view import RunView
from sharedtensor_conformance.report.scope import plural
from sharedtensor_conformance.report.signatures import ALSO_LEFT
from sharedtensor_conformance.report.table import Row
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

_RED, _GREEN, _YELLOW, _BOLD = "31", "32", "33", "1"


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
    blocks = _Blocks(view, width, colour, _Evidence(whole, file))
    return "\n\n".join(block for block in blocks.in_order() if block) + "\n"


class _Evidence:
    """Decides how much evidence is shown, and says where the rest is.

    Each group shows at least the first line of its evidence.
    """

    def __init__(self, whole: bool, file: str | None) -> None:
        self._whole, self._file = whole, file
        self._shown = 0

    def lines_of_next(self, case: Case) -> Iterator[str]:
        """Yield the lines of evidence to show of the next group."""
        lines = case.evidence.splitlines() or ["(no evidence was recorded)"]
        fault = case.verdict is Verdict.ERROR  # the last lines say where it happened
        most = FAULT_LINES if fault else EVIDENCE_LINES
        most = len(lines) if self._whole else most if self._shown < IN_FULL else 1
        self._shown += 1
        # Of a history the end explains the failure, which stands at the beginning.
        first = 0 if fault else (most + 1) // 2
        omitted = max(len(lines) - most, 0)
        for number, line in enumerate(lines):
            if number == first and omitted:
                yield f"({plural(omitted, 'more line')}{self._where})"
            if not first <= number < first + omitted:
                yield line if self._whole else _with_few_leaks(line)

    @property
    def _where(self) -> str:
        if not self._file:
            return "; --report=FILE keeps them"
        return f": shared-tensor-spec report {shlex.quote(self._file)} --all-evidence"


def _with_few_leaks(line: str) -> str:
    """Return a line of evidence; one about leaks with the first of them alone.

    The clauses about leaks have a case that tells all of them.
    """
    leaks = line.split("; ")
    if not line.startswith(ALSO_LEFT.strip()) or len(leaks) <= MOST_LEAKS:
        return line
    return "; ".join([*leaks[:MOST_LEAKS], f"and {len(leaks) - MOST_LEAKS} more"])


class _Blocks:
    """The blocks of the text; an empty one is left out."""

    def __init__(
        self, view: RunView, width: int, colour: bool, evidence: _Evidence
    ) -> None:
        self.view, self.evidence = view, evidence
        self._width, self._colour = max(width, 20), colour

    def in_order(self) -> Iterator[str]:
        yield self._heading()
        yield self._table()
        by_clause = groupby(self.view.groups, lambda one: (one.first, one.expected))
        for _, groups in by_clause:
            yield "\n".join(self._broken(list(groups)))
        yield self._unjudged()
        yield self._not_here()
        stale = self.view.summary.stale
        yield self._listed(f"{sentences.stale_title(self.view)}:", stale)
        yield self._verdict()

    def _heading(self) -> str:
        run, summary = self.view.run, self.view.summary
        devices = sorted({case.device for case in self.view.cases})
        text = (
            f"{self.view.name}, spec {run.spec.version}, {scope.selected(run)}, on "
            f"{' and '.join(devices or [run.selection.device])}: "
            f"{plural(summary.cases, 'case')}{self._follow()} in {summary.seconds:.1f}s"
        )
        paragraphs = [text, *sentences.notes(self.view)]
        return "\n".join(
            line for one in paragraphs for line in self._wrapped(one, "", "  ")
        )

    def _follow(self) -> str:
        """Return how many cases were not run as they follow from known deviations."""
        count = self.view.summary.verdicts.get(Verdict.FOLLOWS, 0)
        follow = "follows" if count == 1 else "follow"
        return f" ({count} {follow} from known deviations, not run)" if count else ""

    def _table(self) -> str:
        rows, names = self.view.rows, self.view.columns
        if not rows:
            return ""
        first = max(len(row.chapter) for row in [*rows, Row("chapter")])
        cells = [[name.replace("_", " ") for name in names]]
        cells += [_cells(row, names) for row in rows]
        head, *body, total = [_table_line(names, line, first) for line in cells]
        rule = "-" * len(head)
        return "\n".join([self._painted(head, _BOLD), rule, *body, rule, total])

    def _broken(self, groups: list[Group]) -> Iterator[str]:
        """Yield the lines about a clause that is the most basic one of `groups`."""
        first = groups[0]
        title = f"{first.first}  {self.view.title(first.first)}"
        line, *more = self._wrapped(title, "", " " * (len(first.first) + 2))
        yield self._painted(line, _YELLOW if first.expected else _RED)
        yield from more
        yield from self._wrapped(sentences.facts(self.view, first), "  ", "  ")
        for group in groups:
            yield from self._group_lines(group)

    def _group_lines(self, group: Group) -> Iterator[str]:
        cause = [f"cause: {group.cause}"] if group.cause else []
        for sentence in (*cause, *sentences.about(group)):
            yield from self._wrapped(sentence, "  ", "    ")
        if not group.cause:  # a known cause explains more than evidence
            for line in self.evidence.lines_of_next(group.shown):
                yield from self._wrapped(_printable(line), "    | ", "    | ")
        yield f"  {self.view.repeat(group)}"

    def _unjudged(self) -> str:
        head, ids = "Claimed, and judged by no case:", self.view.short.unjudged
        if len(ids) > WITH_TITLES:
            ids = tuple(basic_first(ids, self.view.summary.clauses))
            return self._listed(head, [", ".join(ids)], others="  ")
        return self._listed(head, [f"{id}  {self.view.title(id)}" for id in ids])

    def _not_here(self) -> str:
        if not self.view.by_need:
            return ""
        head = f"{NOT_HERE.capitalize()}, since this machine does not permit it:"
        lines = self._wrapped(head)
        for need, ids in self.view.by_need.items():
            lines += self._wrapped(f"{need}: {', '.join(ids)}", "  ", "    ")
            lines += self._wrapped(need.remedy, "    ", "    ")
        return "\n".join(lines)

    def _verdict(self) -> str:
        code = _RED if self.view.summary.exit_status else _GREEN
        lines = self._wrapped(sentences.verdict(self.view))
        return "\n".join(self._painted(line, code) for line in lines)

    def _listed(self, head: str, items: Iterable[str], others: str = "    ") -> str:
        lines = [line for one in items for line in self._wrapped(one, "  ", others)]
        return "\n".join([head, *lines]) if lines else ""

    def _painted(self, text: str, code: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self._colour else text

    def _wrapped(self, text: str, first: str = "", others: str = "") -> list[str]:
        """Return `text` in lines; words are never split."""
        return textwrap.wrap(
            text,
            self._width,
            initial_indent=first,
            subsequent_indent=others,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [first.rstrip()]


def _cells(row: Row, names: list[str]) -> list[str]:
    return [row.text(name) if vars(row)[name] else "." for name in names]


def _table_line(names: list[str], cells: list[str], first: int) -> str:
    rest = zip(names[1:], cells[1:], strict=True)
    return "  ".join([cells[0].ljust(first), *(c.rjust(len(n)) for n, c in rest)])


def _printable(line: str) -> str:
    # Evidence can contain output of a judged process: escape control characters.
    return re.sub(
        r"[\x00-\x1f\x7f-\x9f]",
        lambda found: f"\\x{ord(found[0]):02x}",
        line.expandtabs(4),
    )
