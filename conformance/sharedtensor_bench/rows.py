"""Defines the rows of the benchmark: what is measured.

Both the controller and the drivers use this module; it does not import any
implementation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

CHANNELS = ("simple_queue", "queue", "pipe")
START_METHODS = ("fork", "spawn")
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
TENSOR_COUNT = 1000
VIEW_COUNT = 100
TIMED = "us"
"""The unit of times, microseconds. Rows that count have other units, and no floor."""

NEW, AGAIN, MANY_AT_ONCE, FIRST, CHILD, OTHER = TASKS = (
    "send a new tensor",
    "send a tensor again",
    "send many tensors at once",
    "share a tensor for the first time",
    "start a child",
    "other costs",
)
"""The tasks of a user, in the order in which the rows are shown."""


@dataclass(frozen=True)
class Row:
    """One row of the benchmark.

    Args:
        name: its name on the command line.
        meaning: its description in the table.
        task: the task of a user with this cost, one of `TASKS`.
        kind: the method of `measuring.Measurer` that measures it.
        what: the kind of message, or empty.
        nbytes: the size of a tensor in bytes.
        count: the number of repetitions in one batch.
        round_trip: whether each message is answered; else only the last one is.
        keeps: whether the receiver holds the received tensors.
        varies: the axes along which it is measured.
        needs: the profiles whose operations it uses.
        unit: the unit of its figures.
        large: whether it is measured only with ``--large``.
    """

    name: str
    meaning: str
    task: str
    kind: str
    what: str = ""
    nbytes: int = 4 * KIB
    count: int = 1
    round_trip: bool = True
    keeps: bool = True
    varies: tuple[str, ...] = ("channel", "start_method")
    needs: tuple[str, ...] = ()
    unit: str = TIMED
    large: bool = False


@dataclass(frozen=True)
class Cell:
    """A row with one channel and start method; empty if it does not vary in them."""

    row: str
    channel: str = ""
    start_method: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (self.row, *self.axes) if part)

    @property
    def axes(self) -> tuple[str, str]:
        """The channel and the start method."""
        return self.channel, self.start_method


def _messages() -> Iterable[Row]:
    for nbytes, size in ((4, "4 B"), (4 * KIB, "4 KiB")):
        what: dict[str, Any] = {"task": NEW, "kind": "messages", "what": "new"}
        what["nbytes"] = nbytes
        name, text = f"new-{size.replace(' ', '')}", f"a new tensor of {size}"
        yield Row(f"{name}-round-trip", f"{text}, answered", count=30, **what)
        one_way: dict[str, Any] = {"count": 100, "round_trip": False}
        yield Row(f"{name}-one-way", f"{text}, one way", **what, **one_way)
    for holds, text in (
        (True, "held by the receiver"),
        (False, "dropped by the receiver"),
    ):
        name = f"resend-{'held' if holds else 'dropped'}"
        what = {"task": AGAIN, "kind": "messages", "what": "same", "keeps": holds}
        text = f"a shared tensor again, {text}"
        yield Row(f"{name}-round-trip", f"{text}, answered", count=50, **what)
        one_way = {"count": 200, "round_trip": False}
        yield Row(f"{name}-one-way", f"{text}, one way", **what, **one_way)


def _processor_times() -> Iterable[Row]:
    text = "processor time of sender, receiver and manager"
    for name, task, what, meaning in (
        ("new-4B", NEW, "new", "a new tensor of 4 B"),
        ("resend-dropped", AGAIN, "same", "a shared tensor again"),
    ):
        options: dict[str, Any] = {"round_trip": False, "keeps": False}
        said = f"{meaning}, dropped by the receiver: {text}"
        yield Row(f"{name}-processor", said, task, "processor", what, 4, 500, **options)


def _collections() -> Iterable[Row]:
    text = f"{TENSOR_COUNT:,} new tensors of 4 B in one message"
    yield Row("thousand-new", text, MANY_AT_ONCE, "messages", "many", 4, 1)
    text = f"a state_dict of {VIEW_COUNT} views of one storage"
    what: dict[str, Any] = {"nbytes": 32 * VIEW_COUNT, "count": 10, "needs": ("views",)}
    yield Row("state-dict", text, MANY_AT_ONCE, "messages", "views", **what)


def _without_channel() -> Iterable[Row]:
    for nbytes, size in ((MIB, "1 MiB"), (64 * MIB, "64 MiB"), (GIB, "1 GiB")):
        yield Row(
            f"first-share-{size.replace(' ', '')}",
            f"share {size} of private memory for the first time",
            FIRST,
            "first_share",
            nbytes=nbytes,
            count=5 if nbytes == MIB else 1,
            varies=(),
            needs=("share", "resize", "arrays"),
            large=nbytes == GIB,
        )
    method = ("start_method",)
    text = "from the start of a child to its first message"
    yield Row("child-start", text, CHILD, "child_start", varies=method)
    text += ", with a tensor among its arguments"
    yield Row("child-start-tensor", text, CHILD, "child_start", "new", varies=method)
    for role in ("sender", "receiver"):
        text = f"descriptors of the {role} for each tensor that was sent"
        name, count = f"descriptors-{role}", 20
        options: dict[str, Any] = {"varies": method, "unit": "descriptors"}
        yield Row(name, text, OTHER, "descriptors", role, 4, count, **options)


ROWS = {
    row.name: row
    for row in (*_messages(), *_processor_times(), *_collections(), *_without_channel())
}
"""All rows, by name."""


class UnknownRow(Exception):
    """There is no row with such a name; the message is one sentence."""


def chosen_rows(patterns: Sequence[str], large: bool) -> list[Row]:
    """Return the rows that match one of `patterns`, or all but the large ones.

    A large row that is named in full is chosen even if `large` is false.

    Raises:
        UnknownRow: a pattern matches no row.
    """
    chosen: dict[str, Row] = {}
    for pattern in patterns or ["*"]:
        found = [row for row in ROWS.values() if fnmatchcase(row.name, pattern)]
        if not found:
            raise UnknownRow(
                f"no row is called {pattern!r}; there are {', '.join(ROWS)}"
            )
        kept = [row for row in found if large or not row.large or row.name == pattern]
        chosen |= {row.name: row for row in kept}
    if not chosen:
        raise UnknownRow("only large rows are chosen; ask for them with --large")
    return list(chosen.values())


def cells_of(
    rows: Iterable[Row], channels: Sequence[str], start_methods: Sequence[str]
) -> list[Cell]:
    """Return the cells of rows for these channels and start methods."""
    return [
        Cell(row.name, channel, start_method)
        for row in rows
        for channel in (channels if "channel" in row.varies else [""])
        for start_method in (start_methods if "start_method" in row.varies else [""])
    ]
