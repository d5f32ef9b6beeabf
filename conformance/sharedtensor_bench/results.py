"""Reads and writes the results of the benchmark, a JSON file.

Version 1 of the form has ``machine``, ``options``, ``implementations`` (a list of
*subjects*: an implementation under one strategy), ``results`` and, if it was requested,
``scaling``. A result has ``samples``, one for each repeat, or ``absent``, the reason
why there are none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from operator import itemgetter
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from sharedtensor_bench.rows import TIMED

SCHEMA = 1
NOT_CLAIMED = "not claimed"
FAILED = "failed: "
"""The beginning of the reason in a cell in which an implementation failed."""


class ResultsError(Exception):
    """A file has no results; the message is one sentence."""


@dataclass(frozen=True)
class Subject:
    """An implementation under one strategy, in its environment."""

    implementation: str
    strategy: str
    version: str = ""
    python: str = ""

    def __str__(self) -> str:
        return f"{self.implementation} {self.strategy}"


@dataclass(frozen=True)
class Spread:
    """The median and the quartiles of some figures."""

    low: float
    middle: float
    high: float


def spread_of(figures: Sequence[float]) -> Spread | None:
    """Return the median and the quartiles, or None for fewer than two figures."""
    if len(figures) < 2:
        return None
    return Spread(*quantiles(figures, n=4, method="inclusive"))


@dataclass
class Result:
    """The figures of one cell for one subject."""

    implementation: str
    strategy: str
    row: str
    channel: str
    start_method: str
    unit: str
    samples: list[float] = field(default_factory=list)
    floor: list[float] = field(default_factory=list)
    absent: str = ""

    @property
    def median(self) -> float | None:
        """The median of the samples."""
        return median(self.samples) if self.samples else None

    @property
    def quartiles(self) -> tuple[float, float] | None:
        """The first and the third quartile of the samples."""
        spread = spread_of(self.samples)
        return (spread.low, spread.high) if spread else None

    @property
    def floor_ratios(self) -> list[float]:
        """The ratio to the floor in each repeat."""
        return ratios(self.samples, self.floor)

    @property
    def over_floor(self) -> float | None:
        """The median ratio to the floor over all repeats."""
        return median(self.floor_ratios) if self.floor_ratios else None

    @property
    def cell(self) -> tuple[str, str, str, str]:
        """The key for comparing subjects: row, channel, start method and strategy."""
        return self.row, self.channel, self.start_method, self.strategy

    def as_data(self) -> dict[str, Any]:
        """Return JSON-ready data, including figures computed from the samples."""
        figures = [round(figure, 3) for figure in self.samples]
        floor = [round(figure, 3) for figure in self.floor]
        found = {"median": self.median, "quartiles": self.quartiles}
        found |= {"over_floor": self.over_floor}
        return asdict(self) | {"samples": figures, "floor": floor} | found


def ratios(figures: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return the ratio of each figure to the one of the same repeat."""
    return [one / other for one, other in zip(figures, others, strict=False) if other]


@dataclass
class Results:
    """All results of one run of the benchmark."""

    started: str
    machine: dict[str, Any]
    options: dict[str, Any]
    implementations: list[Subject] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    scaling: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failures(self) -> list[str]:
        """The failures of the implementations, as short texts."""
        cells = [
            (one.implementation, one.strategy, one.row, *one.cell[1:3], one.absent)
            for one in self.results
        ]
        names = ("implementation", "strategy", "what", "to", "absent")
        cells += [itemgetter(*names)(point) for point in self.scaling]
        return [
            " ".join(
                str(part) for part in (*names, why.removeprefix(FAILED)) if part
            ).rstrip(": ")
            for *names, why in cells
            if why.startswith(FAILED)
        ]

    def as_data(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "schema": SCHEMA,
            **{key: getattr(self, key) for key in ("started", "seconds")},
            **{key: getattr(self, key) for key in ("machine", "options")},
            "implementations": [asdict(subject) for subject in self.implementations],
            "results": [result.as_data() for result in self.results],
            "scaling": self.scaling,
        }

    def as_json(self) -> str:
        """Return JSON with a line for each result."""
        data = self.as_data()
        parts = []
        for key, value in data.items():
            if isinstance(value, list) and value:
                lines = ",\n  ".join(json.dumps(item) for item in value)
                parts.append(f"{json.dumps(key)}: [\n  {lines}\n ]")
            else:
                parts.append(f"{json.dumps(key)}: {json.dumps(value)}")
        return "{\n " + ",\n ".join(parts) + "\n}\n"


def read_results(path: str | Path) -> Results:
    """Return the results in a file.

    Raises:
        ResultsError: the file cannot be read, or has other content.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ResultsError(
                f"{path} has version {data['schema']} of the form; expected {SCHEMA}"
            )
        return _from_data(data)
    except OSError as error:
        raise ResultsError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ResultsError(f"{path} has no results of a benchmark") from error


def _from_data(data: dict[str, Any]) -> Results:
    known = set(Result.__dataclass_fields__)
    found = Results(
        **{key: data[key] for key in ("started", "machine", "options", "seconds")},
        implementations=[Subject(**subject) for subject in data["implementations"]],
        results=[
            Result(**{key: value for key, value in result.items() if key in known})
            for result in data["results"]
        ],
        scaling=data["scaling"],
    )
    _verify(found)
    return found


def _verify(found: Results) -> None:
    """Verify that the results are complete and that their figures are possible.

    Raises:
        KeyError: something is missing.
        ValueError: a figure cannot have been measured.
    """
    itemgetter("processor", "cores", "kernel", "python", "load")(found.machine)
    itemgetter("mode", "median_us")(found.machine["wake_up"])
    itemgetter("repeats")(found.options)
    for result in found.results:
        figures = [*result.samples, *result.floor]
        if not all(0 <= one < inf for one in figures):
            raise ValueError(f"a figure of {result.row} cannot have been measured")
        if result.unit == TIMED and not all(figures):
            raise ValueError(f"{result.row} took no time")


def slowdown_of_others(result: Result, others: Sequence[Result]) -> dict[str, float]:
    """Return how many times as long each other implementation takes in this cell."""
    return {
        other.implementation: other.median / result.median
        for other in others
        if other.cell == result.cell
        and other.implementation != result.implementation
        and other.median is not None
        and result.median
    }
