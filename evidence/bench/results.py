"""The figures of a run: how they are stored, what follows from them, and a table.

A file has ``machine``, ``options``, ``implementations`` (each under one strategy) and
``results``. A result has ``samples``, one for each repeat, or ``absent``, the reason
why there are none. It says itself what was measured, so that no reader needs the rows
of the version that has measured it.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from bench.rows import ROWS, TIMED, Cell

SCHEMA = 2
NOT_CLAIMED = "not claimed"
FAILED = "failed: "
"""The beginning of the reason in a cell in which an implementation failed."""


@dataclass
class Result:
    """The figures of one cell for one implementation under one strategy."""

    implementation: str
    strategy: str
    row: str
    channel: str = ""
    start_method: str = ""
    task: str = ""
    meaning: str = ""
    unit: str = TIMED
    samples: list[float] = field(default_factory=list)
    floor: list[float] = field(default_factory=list)
    absent: str = ""

    @classmethod
    def of(cls, implementation: str, strategy: str, cell: Cell) -> Result:
        """Return a result without figures."""
        row = ROWS[cell.row]
        axes = cell.row, cell.channel, cell.start_method
        return cls(implementation, strategy, *axes, row.task, row.meaning, row.unit)

    @property
    def cell(self) -> Cell:
        """What was measured."""
        return Cell(self.row, self.channel, self.start_method)

    @property
    def over_floor(self) -> list[float]:
        """The multiple of the floor in each repeat."""
        return ratios(self.samples, self.floor)

    def add(self, figure: float, floor: float | None) -> None:
        """Add the figures of a repeat."""
        self.samples.append(round(figure, 3))
        if floor is not None:
            self.floor.append(round(floor, 3))

    def fail(self, reason: str) -> None:
        """Store why there are no figures; earlier ones do not count any more."""
        self.samples, self.floor, self.absent = [], [], FAILED + reason


def ratios(figures: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return the ratio of each figure to the one of the same repeat."""
    return [one / other for one, other in zip(figures, others, strict=False) if other]


def machine() -> dict[str, Any]:
    """Return the facts that figures depend on; they do not identify the machine."""
    model = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.M)
    return {
        "processor": model[1] if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
    }


def as_json(data: dict[str, Any]) -> str:
    """Return JSON with a line for each result."""
    parts = []
    for key, value in data.items():
        shown = json.dumps(value)
        if isinstance(value, list) and value:
            shown = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
        parts.append(f"{json.dumps(key)}: {shown}")
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def table(results: Iterable[Result]) -> Iterator[str]:
    """Yield the lines of a table: each cell with all implementations.

    Each is compared with the first one, under the same strategy if both have it.
    """
    cells: dict[Cell, list[Result]] = {}
    for result in results:
        cells.setdefault(result.cell, []).append(result)
    for cell, found in cells.items():
        yield f"\n{cell}: {found[0].meaning}"
        yield from (line(result, counterpart(result, found)) for result in found)


def counterpart(result: Result, found: Sequence[Result]) -> Result:
    """Return the first implementation's result that another one is compared with."""
    first = [one for one in found if one.implementation == found[0].implementation]
    return next((one for one in first if one.strategy == result.strategy), first[0])


def line(result: Result, first: Result) -> str:
    """Return a line of the table."""
    name = f"  {result.implementation} {result.strategy}".ljust(36)
    if not result.samples:
        return name + result.absent
    shown = f"{median(result.samples):>12,.1f} {result.unit}"
    if result.over_floor:
        shown += f"  {spread(result.over_floor)} x floor"
    if result is not first and first.samples and result.unit == TIMED:
        pairs = ratios(result.samples, first.samples)
        shown += f"  {spread(pairs)} x {first.implementation}"
    return name + shown


def spread(figures: Sequence[float]) -> str:
    """Return the median and the quartiles of some ratios."""
    if len(figures) < 2:
        return f"{figures[0]:.2f}"
    low, middle, high = quantiles(figures, n=4, method="inclusive")
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"
