"""The picture of the benchmark: a bar for each line, beside torch and over the floor.

What a bar shows is written beside it, so that nothing is lost without the picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from clauses.rendering import rendered
from docutils import nodes
from sharedtensor_bench.results import Result, Results, Spread
from sharedtensor_bench.table import busy, figure, ratio

from benchmark.axis import Axis
from benchmark.lines import (
    OURS,
    THEIRS,
    Answer,
    Line,
    answered,
    by_row,
    by_task,
    lines_of,
)


def beside(found: Sequence[Results]) -> list[nodes.Node]:
    """Return the picture, or nothing where the reference was not measured."""
    lines = lines_of(found)
    if not lines:
        return []
    axes = {
        "theirs": Axis.over(filter(None, (line.of_theirs for line in lines)), base=2),
        "floor": Axis.over(filter(None, (line.over_floor for line in lines)), base=10),
    }
    answers = answered(lines)
    picture = rendered(
        "beside.html",
        ours=OURS,
        theirs=THEIRS,
        answers=Answer,
        counts={answer: len(members) for answer, members in answers.items()},
        total=sum(map(len, answers.values())),
        slower=[
            (line.anchor, capitalized(name_of(line))) for line in answers[Answer.SLOWER]
        ],
        axes=axes,
        tasks=[
            task_of(task, members, axes) for task, members in by_task(lines).items()
        ],
        runs=runs_of(found),
    )
    return [picture]


def name_of(line: Line) -> str:
    """Return a name of a line that tells it from all others."""
    axes = line.ours.channel, line.ours.start_method
    parts = line.row.meaning, line.ours.strategy, *axes
    return ", ".join(part for part in parts if part)


def capitalized(text: str) -> str:
    """Return a text as the beginning of a line; the rest of it stays as it is."""
    return text[0].upper() + text[1:]


def task_of(task: str, lines: Sequence[Line], axes: dict[str, Axis]) -> dict[str, Any]:
    """Return what the template needs of one group: the usual lines, then the rest."""
    usual = [line for line in lines if line.is_usual]
    others = [line for line in lines if not line.is_usual]
    return {
        "name": task,
        "timed": any(line.is_time for line in lines),
        "usual": rows_of(usual, axes),
        "others": rows_of(others, axes),
        "counts": {
            answer: len(members)
            for answer, members in answered(others).items()
            if members
        },
    }


def rows_of(lines: Iterable[Line], axes: dict[str, Axis]) -> list[dict[str, Any]]:
    """Return what the template needs of each row, and of its lines."""
    return [
        {
            "meaning": capitalized(row.meaning),
            "lines": [line_of(line, axes) for line in members],
        }
        for row, members in by_row(lines).items()
    ]


def line_of(line: Line, axes: dict[str, Axis]) -> dict[str, Any]:
    """Return what the template needs of one line."""
    theirs, floor = line.of_theirs, line.over_floor
    return {
        "anchor": line.anchor,
        "circumstances": line.circumstances,
        "answer": line.answer,
        "theirs": in_figures(theirs),
        "theirs_bar": axes["theirs"].bar(theirs) if theirs else None,
        "floor": in_figures(floor),
        "floor_bar": axes["floor"].bar(floor) if floor else None,
        "counted": "" if line.is_time else counted(line),
        "absent": in_words(line.ours),
    }


def in_figures(spread: Spread | None) -> dict[str, str] | None:
    """Return the median and the quartiles of a ratio as text."""
    if spread is None:
        return None
    return {name: ratio(getattr(spread, name)) for name in ("low", "middle", "high")}


def counted(line: Line) -> str:
    """Return what was counted, where no time was measured."""
    theirs = "" if line.theirs is None else f"; {THEIRS}: {in_words(line.theirs)}"
    return in_words(line.ours) + theirs


def in_words(result: Result) -> str:
    """Return the median with its unit, or why there is none."""
    if result.median is None:
        return result.absent
    return figure(result.median, result.unit)


def runs_of(found: Iterable[Results]) -> list[str]:
    """Return when and where each run was made, each text once."""
    return list(dict.fromkeys(run_of(results) for results in found if results.results))


def run_of(results: Results) -> str:
    """Return a sentence about one run."""
    machine = results.machine
    versions = {one.implementation: one.version for one in results.implementations}
    subjects = " and ".join(f"{name} {version}" for name, version in versions.items())
    day = results.started.partition("T")[0]
    where = f"{machine['processor']}, {machine['cores']} cores, {machine['kernel']}"
    over = ", ".join(
        dict.fromkeys(one.channel for one in results.results if one.channel)
    )
    repeats = f"{results.options['repeats']} repeats over {over or 'no channel'}"
    text = f"{day}: {subjects} on {where}, Python {machine['python']}, {repeats}"
    return f"{text}; {warning}" if (warning := busy(results)) else text
