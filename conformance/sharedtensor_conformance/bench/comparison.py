"""Says what became slower from one run to another, in ratios to the floor.

The floor was measured in the same run, right after each batch, so the two runs may be
those of two machines. A cell counts as slower or faster only beyond the spread of both
runs: each ratio of the one is above each ratio of the other. That the quartiles are
apart would not be enough: by chance alone one comparison in twenty of seven repeats
each would be, and one in thousands is where all repeats are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from statistics import median

from sharedtensor_conformance.bench.results import Result, Results
from sharedtensor_conformance.bench.rows import TIMED, Cell
from sharedtensor_conformance.bench.table import aligned, ratio
from sharedtensor_conformance.report.terminal import plural

ENOUGH = 5
"""The repeats that each run needs: of fewer, chance alone sets too many apart."""

HEAD = ("implementation", "strategy", "cell", "before", "now", "times")
Place = tuple[str, str, str, str, str]


class ComparisonError(Exception):
    """Two runs cannot be compared; the message is one sentence."""


class Change(Enum):
    """What became of a cell."""

    SLOWER = "slower"
    FASTER = "faster"
    WITHIN = "within the spread"
    TOO_FEW = "too few repeats"


@dataclass(frozen=True)
class Compared:
    """A cell of one subject that both runs have."""

    before: Result
    now: Result

    @property
    def times(self) -> float:
        """How many times the ratio of before is that of now."""
        return median(self.now.floor_ratios) / median(self.before.floor_ratios)

    @property
    def change(self) -> Change:
        """What became of it, beyond the spread of both runs."""
        before, now = self.before.floor_ratios, self.now.floor_ratios
        if min(len(before), len(now)) < ENOUGH:
            return Change.TOO_FEW
        if min(now) > max(before):
            return Change.SLOWER
        return Change.FASTER if max(now) < min(before) else Change.WITHIN


@dataclass(frozen=True)
class Comparison:
    """Two runs, the cells that both have, and how many only one of them has."""

    before: Results
    now: Results
    cells: list[Compared]
    only_before: int
    only_now: int

    def of(self, change: Change) -> list[Compared]:
        """Return the cells of which this became, the greatest change first."""
        found = [cell for cell in self.cells if cell.change is change]
        return sorted(found, key=lambda cell: max(cell.times, 1 / cell.times))[::-1]


def compared(before: Results, now: Results) -> Comparison:
    """Return the comparison of two runs.

    Raises:
        ComparisonError: there is nothing that could be compared.
    """
    old, new = by_place(before.results), by_place(now.results)
    both = [Compared(old[place], new[place]) for place in new if place in old]
    if not both:
        raise ComparisonError(
            "no row was measured over its floor in both runs; compare runs of the "
            "same implementations, rows, channels and start methods"
        )
    if all(cell.change is Change.TOO_FEW for cell in both):
        raise ComparisonError(
            f"no row has {ENOUGH} repeats in both runs, and of fewer nothing can be "
            "told; measure with more (--repeats)"
        )
    return Comparison(before, now, both, len(old) - len(both), len(new) - len(both))


def by_place(found: Iterable[Result]) -> dict[Place, Result]:
    """Return the results that are times over a floor, by subject and cell."""
    return {
        (one.implementation, one.strategy, one.row, one.channel, one.start_method): one
        for one in found
        if one.unit == TIMED and one.floor_ratios
    }


def render(comparison: Comparison) -> str:
    """Return the comparison as text: both machines, what changed, and how much did."""
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
    """Return the ratios to the floor: the median, the least and the greatest."""
    found = result.floor_ratios
    return f"{ratio(median(found))} ({ratio(min(found))} to {ratio(max(found))})"


def notes(comparison: Comparison) -> list[str]:
    """Return what to know before one believes the comparison."""
    found = []
    runs = comparison.before, comparison.now
    before, now = (run.machine["wake_up"]["mode"] for run in runs)
    if before != now:
        found.append(
            f"the machine was {before} to wake before and is {now} now: the "
            "floor of a round trip is mostly a wake-up, so ratios moved with it"
        )
    for where, count in (
        ("only before", comparison.only_before),
        ("only now", comparison.only_now),
    ):
        if count:
            found.append(f"measured {where}, not compared: {plural(count, 'cell')}")
    if few := comparison.of(Change.TOO_FEW):
        text = f"fewer than {ENOUGH} repeats, not compared: {plural(len(few), 'cell')}"
        found.append(text)
    return found


def summary(comparison: Comparison) -> str:
    """Return the last line: how many cells became what."""
    judged = len(comparison.cells) - len(comparison.of(Change.TOO_FEW))
    counts = ", ".join(
        f"{len(comparison.of(change))} {change.value}"
        for change in (Change.SLOWER, Change.FASTER, Change.WITHIN)
    )
    return f"{plural(judged, 'cell')} compared: {counts}"
