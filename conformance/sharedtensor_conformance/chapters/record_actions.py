"""Records: objects with tensors in their attributes, as programs send them.

They are pickled in the default ways, without special methods. Each has two attributes,
and stays in its process as one object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from sharedtensor_conformance.harness.remote.actor import Actor


def changed(record: Any, change: Callable[[Any], Any]) -> Any:
    """Return a record of the same class, with `change` applied to both attributes.

    It is the method ``with_leaves`` of all records: see `map_leaves`.
    """
    return type(record)(change(record.first), change(record.second))


class Pair(NamedTuple):
    """A tuple with named fields."""

    first: Any
    second: Any

    def with_leaves(self, change: Callable[[Any], Any]) -> Pair:
        """Return a changed record: see `changed`."""
        return Pair(change(self.first), change(self.second))


@dataclass
class Batch:
    """A dataclass, which is pickled by its ``__dict__``."""

    first: Any
    second: Any

    with_leaves = changed


@dataclass(frozen=True, slots=True)
class FrozenBatch:
    """A frozen dataclass with slots, without a ``__dict__``."""

    first: Any
    second: Any

    with_leaves = changed


class Holder:
    """An ordinary object, which is pickled by its ``__dict__``."""

    def __init__(self, first: Any, second: Any) -> None:
        self.first = first
        self.second = second

    with_leaves = changed


RECORDS: dict[str, Callable[[Any, Any], Any]] = {
    "named tuple": Pair,
    "dataclass": Batch,
    "dataclass with slots": FrozenBatch,
    "object": Holder,
}
"""The classes of records, by their names in tests."""


def kind_of(record: Any) -> str:
    """Return the kind of a record, a key of `RECORDS`; otherwise the class name."""
    kinds = {made: kind for kind, made in RECORDS.items()}
    return kinds.get(type(record), type(record).__name__)


def make_record(actor: Actor, kind: str, first: Any, second: Any) -> Any:
    """Return a record of one of the kinds of `RECORDS`."""
    return RECORDS[kind](first, second)


def describe_record(actor: Actor, record: Any) -> list[Any]:
    """Return the kind of a record and its two attributes."""
    return [kind_of(record), record.first, record.second]
