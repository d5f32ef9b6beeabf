"""Places what the processes held over the rounds, for the picture of the template.

The picture is part of the page, so that its colours can be the page's: text and axes
have the colour of text, and each process one that the style sheet defines. The strokes
of the processes differ as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]

WIDTH, HEIGHT = 260.0, 80.0
HEADROOM = 1.15
QUANTITIES = {
    "descriptors": ("descriptors", 1),
    "mappings": ("mappings", 1),
    "threads": ("threads", 1),
    "names": ("names", 1),
    "memory": ("memory, MiB", 1024),
}
"""What each quantity is called, and how many of its figures are one of what it says."""

ROLES = ("owner", "peer", "manager")


@dataclass(frozen=True)
class Row:
    """One quantity: the lines of each record, as points, by process."""

    label: str
    highest: float
    columns: Sequence[Mapping[str, str]]


def drawn(records: Iterable[Record]) -> list[Record]:
    """Return the records in which there is a line to draw."""
    return [one for one in records if len(one.get("samples", {}).get("round", [])) > 1]


def rows(records: Sequence[Record]) -> list[Row]:
    """Return the rows of the picture, each with one scale for all records."""
    return [row(records, *one) for one in QUANTITIES.items()]


def row(records: Sequence[Record], quantity: str, shown: tuple[str, int]) -> Row:
    """Return one row of the picture."""
    label, unit = shown
    columns = [figures(record["samples"], quantity) for record in records]
    every = [one for found in columns for values in found.values() for one in values]
    highest = max(unit, *every)
    placed = [
        {
            role: points(record["samples"]["round"], values, HEADROOM * highest)
            for role, values in found.items()
        }
        for record, found in zip(records, columns, strict=True)
    ]
    return Row(label, highest / unit, placed)


def figures(samples: Mapping[str, Any], quantity: str) -> dict[str, list[int]]:
    """Return the figures of one quantity, by process where each has its own."""
    if quantity == "names":
        return {"names": samples["names"]}
    return {role: samples[role][quantity] for role in ROLES if role in samples}


def points(rounds: Sequence[int], values: Sequence[int], top: float) -> str:
    """Return the points of a line, as SVG writes them."""
    pairs = zip(rounds, values, strict=True)
    return " ".join(
        f"{across(n, rounds):.1f},{HEIGHT * (1 - v / top):.1f}" for n, v in pairs
    )


def across(number: int, rounds: Sequence[int]) -> float:
    """Return where a round lies on the axis."""
    return WIDTH * number / rounds[-1]
