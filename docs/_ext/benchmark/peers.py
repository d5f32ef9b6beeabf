"""The table of the benchmark beside everything else that hands arrays to a process.

A line is what a user does, a column is another library under one strategy, and a cell
is the reference's time as a multiple of the other's. A library that has no strategy of
this name is compared with the reference's default one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clauses.rendering import rendered
from docutils import nodes
from elements import missing
from sharedtensor_bench.results import (
    FAILED,
    Result,
    Results,
    ResultsError,
    Subject,
    read_results,
)
from sharedtensor_bench.rows import ROWS, START_METHODS, TIMED
from sharedtensor_bench.table import figure, ratio
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from benchmark.beside import capitalized, run_of
from benchmark.lines import OURS, Line

Cells = dict[tuple[str, str, str, str], Result]
"""The results by implementation, strategy, row and start method."""


class PeersDirective(SphinxDirective):
    """``{benchmark-peers} FILE``: the reference beside others, one run with all."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Render the file; one that is missing is said to be missing."""
        path = Path(self.env.srcdir, self.arguments[0])
        self.env.note_dependency(str(path))
        if not path.exists():
            return [missing("No other library has been measured yet.")]
        try:
            return [peers(read_results(path))]
        except ResultsError as error:
            raise ExtensionError(str(error)) from error


def peers(results: Results) -> nodes.Node:
    """Return the table of one run."""
    cells = {
        (one.implementation, one.strategy, one.row, one.start_method): one
        for one in results.results
        if one.channel in ("", "pipe")
    }
    others = [one for one in results.implementations if one.implementation != OURS]
    ours = [one.strategy for one in results.implementations if one not in others]
    lines = [
        (row, start_method)
        for row in dict.fromkeys(one.row for one in results.results)
        for start_method in methods_of(row)
    ]
    return rendered(
        "peers.html",
        ours=OURS,
        run=run_of(results),
        strategies=ours,
        columns=[column_of(one, cells, ours) for one in others],
        lines=[line_of(*line, others, ours, cells) for line in lines],
        failures=results.failures,
    )


def methods_of(row: str) -> Sequence[str]:
    """Return the start methods of a row that have a line: both of a child's start."""
    return START_METHODS if starts_a_child(row) else ("fork",)


def column_of(subject: Subject, cells: Cells, ours: Sequence[str]) -> dict[str, str]:
    """Return the head of a column, and what it is measured against."""
    return {
        "name": subject.implementation,
        "strategy": subject.strategy if subject.strategy in ours else "",
        "version": subject.version,
        "method": "" if forks(subject, cells) else "spawn",
    }


def forks(subject: Subject, cells: Cells) -> bool:
    """Return whether an implementation was measured with forked processes at all."""
    return any(
        one.samples and one.start_method == "fork"
        for one in cells.values()
        if one.implementation == subject.implementation
    )


def line_of(
    row: str,
    start_method: str,
    others: Sequence[Subject],
    ours: Sequence[str],
    cells: Cells,
) -> dict[str, Any]:
    """Return what the template needs of one line."""
    own = [cells.get((OURS, strategy, row, start_method)) for strategy in ours]
    more = f" ({start_method})" if starts_a_child(row) else ""
    methods = [compared_under(one, row, start_method, cells) for one in others]
    return {
        "meaning": capitalized(ROWS[row].meaning) + more,
        "own": [in_words(one) for one in own],
        "cells": [
            cell_of(one, row, method, ours, cells)
            for one, method in zip(others, methods, strict=True)
        ],
    }


def compared_under(subject: Subject, row: str, start_method: str, cells: Cells) -> str:
    """Return under which start method a cell is: for messages that makes no odds."""
    if starts_a_child(row) or forks(subject, cells):
        return start_method
    return "spawn"


def starts_a_child(row: str) -> bool:
    """Return whether a row is about the start of a child."""
    return ROWS[row].kind == "child_start"


def cell_of(
    subject: Subject, row: str, start_method: str, ours: Sequence[str], cells: Cells
) -> dict[str, str]:
    """Return what a cell says, and how it looks."""
    strategy = subject.strategy if subject.strategy in ours else ours[0]
    mine = cells.get((OURS, strategy, row, start_method))
    theirs = cells.get((subject.implementation, subject.strategy, row, start_method))
    if mine is None or theirs is None or theirs.median is None:
        failed = theirs is not None and theirs.absent.startswith(FAILED)
        text = "fails" if failed else "\N{EN DASH}"
        return {"text": text, "slug": "", "title": in_words(theirs), "heard": ""}
    line = Line(mine, theirs)
    spread = line.of_theirs
    answer = line.answer
    if spread is None or answer is None:
        return {"text": in_words(theirs), "slug": "", "title": "", "heard": ""}
    title = f"{in_words(theirs)}; the {OURS}: {in_words(mine)}"
    times = f"{ratio(spread.middle)}\N{MULTIPLICATION SIGN}"
    text = f"{answer.symbol}\N{NARROW NO-BREAK SPACE}{times}"
    return {"text": text, "slug": answer.slug, "title": title, "heard": answer.words}


def in_words(result: Result | None) -> str:
    """Return a median, with its unit if it is a time, or why there is none."""
    if result is None:
        return "not measured"
    if result.median is None:
        return result.absent
    if result.unit != TIMED:
        return f"{result.median:.1f}"
    return figure(result.median, result.unit)
