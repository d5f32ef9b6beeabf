"""Sets the reference beside torch: a line for each cell and strategy, with its ratios.

Both ratios are taken within each repeat, since the batches of one repeat met the same
machine: the reference's time to torch's, and the reference's time to the floor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from sharedtensor_bench.results import (
    Result,
    Results,
    Spread,
    ratios,
    spread_of,
)
from sharedtensor_bench.rows import ROWS, TASKS, TIMED, Row

OURS, THEIRS = "reference", "torch"


class Answer(Enum):
    """What a line says of the reference beside torch: its sign, and its words."""

    FASTER = "▾", "faster"
    UNCLEAR = "≈", "no clear difference"
    SLOWER = "▴", "slower"

    def __init__(self, symbol: str, words: str) -> None:
        self.symbol = symbol
        self.words = words

    @property
    def slug(self) -> str:
        """The class of the style sheet."""
        return self.name.lower()


@dataclass(frozen=True)
class Line:
    """A result of the reference, and torch's of the same cell, if there is one."""

    ours: Result
    theirs: Result | None

    @property
    def row(self) -> Row:
        """What was measured."""
        return ROWS[self.ours.row]

    @property
    def is_time(self) -> bool:
        """Whether it has ratios: what is counted is zero now and then."""
        return self.ours.unit == TIMED

    @property
    def of_theirs(self) -> Spread | None:
        """The reference's time as a multiple of torch's."""
        if self.theirs is None or not self.is_time:
            return None
        return spread_of(ratios(self.ours.samples, self.theirs.samples))

    @property
    def over_floor(self) -> Spread | None:
        """The reference's time as a multiple of the floor."""
        return spread_of(self.ours.floor_ratios) if self.is_time else None

    @property
    def answer(self) -> Answer | None:
        """Faster or slower where both quartiles are on one side of 1."""
        spread = self.of_theirs
        if spread is None:
            return None
        if spread.high < 1:
            return Answer.FASTER
        return Answer.SLOWER if spread.low > 1 else Answer.UNCLEAR

    @property
    def is_usual(self) -> bool:
        """Whether it is shown at once: a pipe to a forked process, or a child's start.

        The start method makes a child's start what it is, and changes little else.
        """
        starts = self.row.kind == "child_start"
        return self.ours.channel in ("", "pipe") and (
            starts or self.ours.start_method in ("", "fork")
        )

    @property
    def circumstances(self) -> str:
        """The strategy and the axes of the cell, but for what `is_usual` says."""
        ours = self.ours
        starts = self.row.kind == "child_start"
        axes = [] if self.is_usual and not starts else [ours.channel, ours.start_method]
        return ", ".join(part for part in (ours.strategy, *axes) if part)

    @property
    def anchor(self) -> str:
        """Its place on the page."""
        parts = ("cost", self.ours.row, *self.ours.cell[1:])
        return "-".join(part for part in parts if part).replace("_", "-")


def lines_of(found: Iterable[Results]) -> list[Line]:
    """Return a line for each result of the reference.

    Where a cell was measured twice, the later run has the line.
    """
    lines = {}
    for results in sorted(found, key=lambda results: results.started):
        by_cell = {
            result.cell: result
            for result in results.results
            if result.implementation == THEIRS
        }
        for result in results.results:
            if result.implementation == OURS:
                lines[result.cell] = Line(result, by_cell.get(result.cell))
    return list(lines.values())


def by_task(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """Return the lines by what a user does, in the order of the tasks."""
    found = {task: [line for line in lines if line.row.task == task] for task in TASKS}
    return {task: members for task, members in found.items() if members}


def by_row(lines: Iterable[Line]) -> dict[Row, list[Line]]:
    """Return the lines by what was measured."""
    found: dict[Row, list[Line]] = {}
    for line in lines:
        found.setdefault(line.row, []).append(line)
    return found


def answered(lines: Iterable[Line]) -> dict[Answer, list[Line]]:
    """Return the lines that are compared with torch, by what they say."""
    found: dict[Answer, list[Line]] = {answer: [] for answer in Answer}
    for line in lines:
        if line.answer is not None:
            found[line.answer].append(line)
    return found
