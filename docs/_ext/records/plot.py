"""Places what the processes held over the rounds, for the picture of the template.

The picture is part of the page, so that its colours can be the page's: text and axes
have the colour of text, and each process one that the style sheet defines. The strokes
of the processes differ as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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


Row = tuple[str, float, list[dict[str, str]]]
"""What a quantity is called, its highest figure, and lines by process and record."""


def drawn(records: Iterable[Record]) -> list[Record]:
    """Return the records in which there is a line to draw."""
    return [one for one in records if len(one.get("samples", {}).get("round", [])) > 1]


def rows(records: Sequence[Record]) -> list[Row]:
    """Return the rows of the picture, each with one scale for all records."""
    found = []
    for quantity, (label, unit) in QUANTITIES.items():
        columns = [figures(record["samples"], quantity) for record in records]
        every = [values for lines in columns for values in lines.values()]
        highest = max(unit, *map(max, every))
        placed = [
            {role: points(values, HEADROOM * highest) for role, values in one.items()}
            for one in columns
        ]
        found.append((label, highest / unit, placed))
    return found


def figures(samples: Mapping[str, Any], quantity: str) -> dict[str, list[int]]:
    """Return the figures of one quantity, by process where each has its own."""
    if quantity == "names":
        return {"names": samples["names"]}
    return {role: samples[role][quantity] for role in ROLES if role in samples}


def points(values: Sequence[int], top: float) -> str:
    """Return the points of a line, as SVG writes them; samples are evenly spaced."""
    steps = enumerate(values, 1)
    places = [(WIDTH * n / len(values), HEIGHT * (1 - v / top)) for n, v in steps]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
