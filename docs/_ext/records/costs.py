"""Shows what the benchmark has measured: the reference beside torch, and beside others.

All ratios are taken within each repeat, since the batches of one repeat met the same
machine: the reference's time to another's, and the reference's time to the floor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from math import ceil, floor, log2
from statistics import quantiles
from typing import Any, NamedTuple

from bench.results import FAILED, TIMED, ratios

Record = Mapping[str, Any]

OURS, THEIRS = "reference", "torch"
STARTS_A_CHILD = "start a child"
FEW_TICKS = 6  # as many labels as fit side by side
CELL = ("row", "channel", "start_method", "strategy")


class Spread(NamedTuple):
    """The median and the quartiles of some figures."""

    low: float
    middle: float
    high: float


class Answer(Enum):
    """How the reference's time compares with another's: its sign, and its words."""

    FASTER = "▾", "faster"
    UNCLEAR = "≈", "no clear difference"
    SLOWER = "▴", "slower"

    def __init__(self, symbol: str, words: str) -> None:
        self.symbol = symbol
        self.words = words
        self.slug = self.name.lower()  # the class of the style sheet

    @classmethod
    def to(cls, times: Spread) -> Answer:
        """Return faster or slower where both quartiles are on one side of 1."""
        if times.high < 1:
            return cls.FASTER
        return cls.SLOWER if times.low > 1 else cls.UNCLEAR


@dataclass(frozen=True)
class Pair:
    """A result of the reference, and another's of the same cell, if there is one."""

    ours: Record
    theirs: Record | None

    @property
    def times(self) -> Spread | None:
        """The reference's time as a multiple of the other's; counts have none."""
        if self.theirs is None or self.ours["unit"] != TIMED:
            return None
        return spread_of(self.ours["samples"], self.theirs["samples"])

    @property
    def over_floor(self) -> Spread | None:
        """The reference's time as a multiple of the floor."""
        return spread_of(self.ours["samples"], self.ours["floor"])

    @property
    def answer(self) -> Answer | None:
        """What the multiple of the other's time says."""
        return Answer.to(self.times) if self.times else None

    @property
    def is_usual(self) -> bool:
        """Whether it is shown at once: a pipe to a forked process, or a child's start.

        The start method makes a child's start what it is, and changes little else.
        """
        forks = self.ours["start_method"] in ("", "fork")
        starts = self.ours["task"] == STARTS_A_CHILD
        return self.ours["channel"] in ("", "pipe") and (starts or forks)

    @property
    def circumstances(self) -> str:
        """The strategy and the axes of the cell, but for what `is_usual` says."""
        names = ["strategy", "channel", "start_method"]
        if self.is_usual and self.ours["task"] != STARTS_A_CHILD:
            names = ["strategy"]
        return ", ".join(filter(None, (self.ours[name] for name in names)))

    @property
    def anchor(self) -> str:
        """Its place on the page."""
        parts = ("cost", *(self.ours[name] for name in CELL))
        return "-".join(filter(None, parts)).replace("_", "-")


def spread_of(figures: Sequence[float], others: Sequence[float]) -> Spread | None:
    """Return the spread of the ratios in each repeat, or None for fewer than two."""
    found = ratios(figures, others)
    if len(found) < 2:
        return None
    return Spread(*quantiles(found, n=4, method="inclusive"))


class Axis(NamedTuple):
    """A logarithmic axis of ratios between two powers of 2."""

    low: int
    high: int

    @classmethod
    def over(cls, spreads: Iterable[Spread]) -> Axis:
        """Return the axis that has room for all of the spreads, and for 1."""
        ends = [1.0, *(end for one in spreads for end in (one.low, one.high))]
        low, high = floor(log2(min(ends))), ceil(log2(max(ends)))
        return cls(low, max(high, low + 1))

    def place(self, ratio: float) -> float:
        """Return where a ratio is, in per cent of the width."""
        return round(100 * (log2(ratio) - self.low) / (self.high - self.low), 2)

    @property
    def ticks(self) -> dict[float, str]:
        """The labels of powers of 2 by their places; on a long axis, of every other."""
        step = 1 if self.high - self.low <= FEW_TICKS else 2
        shown = (one for one in range(self.low, self.high + 1) if one % step == 0)
        powers = (Fraction(2) ** power for power in shown)
        return {self.place(one): f"{one}\N{MULTIPLICATION SIGN}" for one in powers}


# Beside torch


def prepared(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reference beside torch: the pairs by task, and by their answers."""
    records: Mapping[str, Record] = content["records"]
    pairs = pairs_of(records.values())
    compared = [pair for pair in pairs if pair.answer]
    by_answer = grouped(compared, lambda pair: pair.answer)
    return {
        "tasks": grouped(pairs, lambda pair: pair.ours["task"]),
        "answers": {answer: by_answer.get(answer, []) for answer in Answer},
        "axis": Axis.over(pair.times for pair in compared if pair.times),
    }


def pairs_of(records: Iterable[Record]) -> list[Pair]:
    """Return a pair for each cell; the later run counts for one measured twice."""
    pairs = {}
    for record in sorted(records, key=lambda record: record["started"]):
        theirs = by_cell(record, THEIRS)
        for cell, result in by_cell(record, OURS).items():
            pairs[cell] = Pair(result, theirs.get(cell))
    return list(pairs.values())


def by_cell(record: Record, implementation: str) -> dict[tuple[str, ...], Record]:
    """Return the results of an implementation by what was measured."""
    return {
        tuple(result[name] for name in CELL): result
        for result in record["results"]
        if result["implementation"] == implementation
    }


def grouped(pairs: Iterable[Pair], key: Callable[[Pair], Any]) -> dict[Any, list[Pair]]:
    """Return pairs in groups."""
    groups: dict[Any, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(key(pair), []).append(pair)
    return groups


# Beside other libraries


class Peers:
    """A run of the reference beside other libraries, over a pipe."""

    def __init__(self, record: Record) -> None:
        results = [one for one in record["results"] if one["channel"] in ("", "pipe")]
        names = ("implementation", "strategy", "row", "start_method")
        self.results = {tuple(one[name] for name in names): one for one in results}
        subjects = record["implementations"]
        own = [one for one in subjects if one["implementation"] == OURS]
        self.strategies = [one["strategy"] for one in own]
        self.others = [one for one in subjects if one not in own]

    def lines(self) -> list[tuple[Record, list[Record | None], list[Pair | None]]]:
        """Return a result of each line, the reference's results, and the pairs."""
        shown = {}
        for (_, _, row, method), result in self.results.items():
            if method == "fork" or result["task"] == STARTS_A_CHILD:
                shown.setdefault((row, method), result)
        return [
            (
                result,
                [self.results.get((OURS, one, *key)) for one in self.strategies],
                [self.pair(other, result) for other in self.others],
            )
            for key, result in shown.items()
        ]

    def pair(self, other: Record, result: Record) -> Pair | None:
        """Return the reference's result beside that of another library.

        A library that has no strategy of this name is compared with the default one of
        the reference. One that does not fork is compared under `spawn`, which makes no
        difference to messages.
        """
        name, strategy = other["implementation"], other["strategy"]
        forks = result["task"] == STARTS_A_CHILD or self.forks(name)
        cell = result["row"], result["start_method"] if forks else "spawn"
        same = strategy if strategy in self.strategies else self.strategies[0]
        ours = self.results.get((OURS, same, *cell))
        return Pair(ours, self.results.get((name, strategy, *cell))) if ours else None

    def forks(self, name: str) -> bool:
        """Return whether a library was measured with forked processes at all."""
        return any(
            one["samples"] and one["start_method"] == "fork"
            for one in self.results.values()
            if one["implementation"] == name
        )


def prepared_peers(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reference beside other libraries, by what is measured."""
    record: Record = content["record"]
    return {
        "peers": Peers(record),
        "failures": [one for one in record["results"] if has_failed(one)],
        "has_failed": has_failed,
    }


def has_failed(result: Record | None) -> bool:
    """Return whether an implementation failed in a cell."""
    return result is not None and result["absent"].startswith(FAILED)
