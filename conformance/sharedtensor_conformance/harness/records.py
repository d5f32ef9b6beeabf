"""Records: objects with tensors in their attributes, as programs send them.

They are pickled in the default ways, without special methods. Each has two attributes,
and stays in its process as one object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple


class Pair(NamedTuple):
    """A tuple with named fields."""

    first: Any
    second: Any


@dataclass
class Batch:
    """A dataclass, which is pickled by its ``__dict__``."""

    first: Any
    second: Any


@dataclass(frozen=True, slots=True)
class FrozenBatch:
    """A frozen dataclass with slots, without a ``__dict__``."""

    first: Any
    second: Any


class Holder:
    """An ordinary object, which is pickled by its ``__dict__``."""

    def __init__(self, first: Any, second: Any) -> None:
        self.first = first
        self.second = second


RECORDS: dict[str, Callable[[Any, Any], Any]] = {
    "named tuple": Pair,
    "dataclass": Batch,
    "dataclass with slots": FrozenBatch,
    "object": Holder,
}
"""The classes of records, by their names in tests."""


def is_record(value: Any) -> bool:
    """Return whether a value is a record."""
    return type(value) in RECORDS.values()


def changed(record: Any, change: Callable[[Any], Any]) -> Any:
    """Return a record of the same class, with `change` applied to both attributes."""
    return type(record)(change(record.first), change(record.second))


def kind_of(record: Any) -> str:
    """Return the kind of a record, a key of `RECORDS`; otherwise the class name."""
    kinds = {made: kind for kind, made in RECORDS.items()}
    return kinds.get(type(record), type(record).__name__)
