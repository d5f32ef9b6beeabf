"""Compares two runs of the benchmark by their ratios to the floor.

The floor is measured in the same run, right after each batch. So the two runs may come
from different machines. A cell counts as slower or faster only if each ratio of one run
is above each ratio of the other. Separate quartiles would not be enough: with seven
repeats each, chance alone separates them in one comparison of twenty, but separates all
repeats only in one of thousands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from statistics import median

from sharedtensor_conformance.report.scope import plural

from sharedtensor_bench.results import Result, Results
from sharedtensor_bench.rows import TIMED, Cell
from sharedtensor_bench.table import aligned, ratio

MIN_REPEATS = 5
"""The minimum number of repeats in each run. With fewer, too many cells differ by
chance.
"""

HEAD = ("implementation", "strategy", "cell", "before", "now", "times")
Place = tuple[str, str, str, str, str]


class ComparisonError(Exception):
    """Two runs cannot be compared; the message is one sentence."""


class Change(Enum):
    """The change of a cell from one run to another."""

    SLOWER = "slower"
    FASTER = "faster"
    WITHIN = "within the spread"
    TOO_FEW = "too few repeats"


@dataclass(frozen=True)
class Compared:
    """A cell of one subject that is in both runs."""

    before: Result
    now: Result

    @property
    def times(self) -> float:
        """The median ratio to the floor now, divided by that of before."""
        return median(self.now.floor_ratios) / median(self.before.floor_ratios)

    @property
    def change(self) -> Change:
        """The change, beyond the spread of both runs."""
        before, now = self.before.floor_ratios, self.now.floor_ratios
        if min(len(before), len(now)) < MIN_REPEATS:
            return Change.TOO_FEW
        if min(now) > max(before):
            return Change.SLOWER
        return Change.FASTER if max(now) < min(before) else Change.WITHIN


@dataclass(frozen=True)
class Comparison:
    """Two runs, the cells in both of them, and the number of cells in only one."""

    before: Results
    now: Results
    cells: list[Compared]
    only_before: int
    only_now: int

    def of(self, change: Change) -> list[Compared]:
        """Return the cells with this change, the greatest change first."""
        found = [cell for cell in self.cells if cell.change is change]
        return sorted(found, key=lambda cell: max(cell.times, 1 / cell.times))[::-1]


def compared(before: Results, now: Results) -> Comparison:
    """Return the comparison of two runs.

    Raises:
        ComparisonError: no cell can be compared.
    """
    old, new = by_place(before.results), by_place(now.results)
    both = [Compared(old[place], new[place]) for place in new if place in old]
    if not both:
        raise ComparisonError(
            "no row was measured with a floor in both runs; compare runs of the "
            "same implementations, rows, channels and start methods"
        )
    if all(cell.change is Change.TOO_FEW for cell in both):
        raise ComparisonError(
            f"no row has {MIN_REPEATS} repeats in both runs, which a comparison needs; "
            "measure with more (--repeats)"
        )
    return Comparison(before, now, both, len(old) - len(both), len(new) - len(both))


def by_place(found: Iterable[Result]) -> dict[Place, Result]:
    """Return the timed results that have a floor, by subject and cell."""
    return {
        (one.implementation, one.strategy, one.row, one.channel, one.start_method): one
        for one in found
        if one.unit == TIMED and one.floor_ratios
    }


def render(comparison: Comparison) -> str:
    """Return the comparison as text: both machines, changed cells and a summary."""
    parts = [
        "\n".join([run_of("before", comparison.before), run_of("now", comparison.now)])
    ]
    for change in (Change.SLOWER, Change.FASTER):
        if found := comparison.of(change):
            title = f"{change.value}, in times the floor: median (least to greatest)"
            parts.append(f"{title}\n{aligned([HEAD, *map(line_of, found)])}")
    parts.append("\n".join([*notes(comparison), summary(comparison)]))
    return "\n\n".join(parts) + "\n"


def run_of(name: str, results: Results) -> str:
    """Return a line about one run."""
    machine, wake_up = results.machine, results.machine["wake_up"]
    repeats = plural(results.options["repeats"], "repeat")
    return (
        f"{name}: {results.started}, {machine['processor']}, {machine['cores']} cores, "
        f"Python {machine['python']}, wake-up {wake_up['mode']}, {repeats}"
    )


def line_of(cell: Compared) -> tuple[str, ...]:
    """Return one line of the table."""
    now = cell.now
    return (
        now.implementation,
        now.strategy,
        str(Cell(now.row, now.channel, now.start_method)),
        in_ratios(cell.before),
        in_ratios(now),
        f"{cell.times:.2f}",
    )


def in_ratios(result: Result) -> str:
    """Return the ratios to the floor as text: median, least and greatest."""
    found = result.floor_ratios
    return f"{ratio(median(found))} ({ratio(min(found))} to {ratio(max(found))})"


def notes(comparison: Comparison) -> list[str]:
    """Return warnings about the comparison."""
    found = []
    runs = comparison.before, comparison.now
    before, now = (run.machine["wake_up"]["mode"] for run in runs)
    if before != now:
        found.append(
            f"the machine was {before} to wake before and is {now} now: the "
            "floor of a round trip is mostly a wake-up, so ratios changed with it"
        )
    for where, count in (
        ("only before", comparison.only_before),
        ("only now", comparison.only_now),
    ):
        if count:
            found.append(f"measured {where}, not compared: {plural(count, 'cell')}")
    if few := comparison.of(Change.TOO_FEW):
        text = f"fewer than {MIN_REPEATS} repeats, not compared: "
        found.append(text + plural(len(few), "cell"))
    return found


def summary(comparison: Comparison) -> str:
    """Return the last line: the number of cells with each change."""
    judged = len(comparison.cells) - len(comparison.of(Change.TOO_FEW))
    counts = ", ".join(
        f"{len(comparison.of(change))} {change.value}"
        for change in (Change.SLOWER, Change.FASTER, Change.WITHIN)
    )
    return f"{plural(judged, 'cell')} compared: {counts}"
