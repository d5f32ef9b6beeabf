"""The rows of the benchmark: what is measured.

Both the controller and the drivers use this module; it does not import any
implementation.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

AXES = {
    "channel": ("simple_queue", "queue", "pipe"),
    "start_method": ("fork", "spawn"),
}
STRATEGIES = ("file_descriptor", "file_system")
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
TENSOR_COUNT = 1000
VIEW_COUNT = 100
TIMED = "us"
"""The unit of times, microseconds. Rows that count have other units, and no floor."""

NEW, AGAIN = "send a new tensor", "send a tensor again"
MANY_AT_ONCE = "send many tensors at once"
FIRST, CHILD = "share a tensor for the first time", "start a child"
OTHER = "other costs"


@dataclass(frozen=True)
class Row:
    """One row of the benchmark.

    Args:
        name: its name on the command line.
        meaning: its description in the table.
        task: the task of a user with this cost.
        what: the kind of message, or the process that is looked at.
        kind: the method of `measuring.Owner` that measures it.
        nbytes: the size of a tensor in bytes.
        count: the number of repetitions in one batch.
        answered: whether each message is answered; else only the last one is.
        keeps: whether the receiver holds the received tensors.
        varies: the axes along which it is measured.
        needs: the profiles whose operations it uses.
        unit: the unit of its figures.
    """

    name: str
    meaning: str
    task: str
    what: str = "new"
    kind: str = "messages"
    nbytes: int = 4
    count: int = 1
    answered: bool = True
    keeps: bool = True
    varies: tuple[str, ...] = ("channel", "start_method")
    needs: tuple[str, ...] = ()
    unit: str = TIMED


@dataclass(frozen=True)
class Cell:
    """A row with one channel and start method; empty if it does not vary in them."""

    row: str
    channel: str = ""
    start_method: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.row, self.channel, self.start_method)))


def _answered_and_one_way(row: Row, one_way_count: int) -> Iterator[Row]:
    name, meaning = row.name, row.meaning
    yield replace(row, name=f"{name}-round-trip", meaning=f"{meaning}, answered")
    row = replace(row, name=f"{name}-one-way", meaning=f"{meaning}, one way")
    yield replace(row, answered=False, count=one_way_count)


def _messages() -> Iterator[Row]:
    for size, nbytes in (("4 B", 4), ("4 KiB", 4 * KIB)):
        new = f"new-{size.replace(' ', '')}", f"a new tensor of {size}", NEW
        yield from _answered_and_one_way(Row(*new, nbytes=nbytes, count=30), 100)
    for held, keeps in (("held", True), ("dropped", False)):
        said = f"a shared tensor again, {held} by the receiver"
        row = Row(f"resend-{held}", said, AGAIN, "same", nbytes=4 * KIB, count=50)
        yield from _answered_and_one_way(replace(row, keeps=keeps), 200)


def _processor_times() -> Iterator[Row]:
    said = "dropped by the receiver: processor time of sender, receiver and manager"
    options: Any = {"kind": "processor", "answered": False, "keeps": False}
    options["count"] = 500
    yield Row("new-4B-processor", f"a new tensor of 4 B, {said}", NEW, **options)
    again = f"a shared tensor again, {said}"
    yield Row("resend-dropped-processor", again, AGAIN, "same", **options)


def _collections() -> Iterator[Row]:
    said = f"{TENSOR_COUNT:,} new tensors of 4 B in one message"
    yield Row("thousand-new", said, MANY_AT_ONCE, "many")
    said = f"a state_dict of {VIEW_COUNT} views of one storage"
    options: Any = {"nbytes": 32 * VIEW_COUNT, "count": 10, "needs": ("views",)}
    yield Row("state-dict", said, MANY_AT_ONCE, "views", **options)


def _first_shares() -> Iterator[Row]:
    options: Any = {"varies": (), "needs": ("share", "resize", "arrays")}
    for size, nbytes in (("1 MiB", MIB), ("64 MiB", 64 * MIB), ("1 GiB", GIB)):
        name = f"first-share-{size.replace(' ', '')}"
        said = f"share {size} of private memory for the first time"
        options |= {"nbytes": nbytes, "count": 5 if nbytes == MIB else 1}
        yield Row(name, said, FIRST, "", "first_share", **options)


def _by_start_method() -> Iterator[Row]:
    options: Any = {"varies": ("start_method",)}
    for name, what, more in (
        ("child-start", "", ""),
        ("child-start-tensor", "new", ", with a tensor among its arguments"),
    ):
        said = f"from the start of a child to its first message{more}"
        yield Row(name, said, CHILD, what, "child_start", 4 * KIB, **options)
    options |= {"count": 20, "unit": "descriptors"}
    for role in ("sender", "receiver"):
        said = f"descriptors of the {role} for each tensor that was sent"
        yield Row(f"descriptors-{role}", said, OTHER, role, "descriptors", **options)


ROWS = {
    row.name: row
    for row in (
        *(*_messages(), *_processor_times(), *_collections()),
        *(*_first_shares(), *_by_start_method()),
    )
}
"""All rows, by name."""


class UnknownRow(Exception):
    """There is no row with such a name; the message is one sentence."""


def chosen_rows(patterns: Sequence[str]) -> list[Row]:
    """Return the rows that match one of `patterns`; without any, all but that of 1 GiB.

    Raises:
        UnknownRow: a pattern matches no row.
    """
    if not patterns:
        return [row for row in ROWS.values() if row.nbytes < GIB]
    for pattern in patterns:
        if not fnmatch.filter(ROWS, pattern):
            raise UnknownRow(f"no row is called {pattern!r}; see --help")
    found = {name for one in patterns for name in fnmatch.filter(ROWS, one)}
    return [row for name, row in ROWS.items() if name in found]


def cells_of(rows: Iterable[Row], chosen: dict[str, Sequence[str]]) -> list[Cell]:
    """Return the cells of rows for the chosen channels and start methods."""
    found = []
    for row in rows:
        axes = (chosen[axis] if axis in row.varies else [""] for axis in AXES)
        found += [Cell(row.name, *axis) for axis in product(*axes)]
    return found
