"""Fixes of PyTorch in Python, which show that it can meet the clauses; not a product.

Each fix is a function that replaces functions of PyTorch, or of the standard library
where PyTorch uses its channels, in the process that calls it. `install` applies the
fixes. `FIXES` lists them in order, because a later fix may wrap the result of an
earlier one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from importlib import import_module


@dataclasses.dataclass(frozen=True)
class Fix:
    """One fix: where its function is, and the clauses that it restores by itself.

    Args:
        clauses: those that PyTorch breaks and that hold, at least in the cases that
            the fix is about, once it is applied with those that it `needs`.
        needs: the fixes that have to be applied as well.
    """

    name: str
    clauses: tuple[str, ...]
    needs: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The module that holds the function."""
        return f"{__name__}.{self.name}"

    def apply(self) -> None:
        """Replace the functions in this process."""
        function: Callable[[], None] = import_module(self.place).apply
        function()


FIXES = (
    Fix("messages", ("LIFE-3", "LIFE-5", "LIFE-21", "FD-6", "ENV-2", "THREAD-4")),
    Fix("queues", ("GRAD-5", "CHAN-7", "FAIL-1", "LIFE-16", "LOAD-4"), ("messages",)),
    Fix("strategies", ("STRAT-1", "STRAT-4", "STRAT-5", "FS-1")),
    Fix("refusals", ("LIFE-18", "LIFE-19"), ("messages", "queues")),
    Fix("handles", ("SEC-6", "SEC-7", "SEC-8")),
    Fix("grads", ("GRAD-2", "GRAD-3", "GRAD-4", "GRAD-8", "GRAD-9")),
    Fix("kinds", ("VIEW-9", "KIND-1", "KIND-2")),
    Fix("growth", ("SHARE-8",)),
    Fix("arrays", ("SHARE-10",)),
    Fix("inheritance", ("FD-5",)),
    Fix("files", ("FAIL-3", "FAIL-4", "MGR-9")),
    Fix("manager", ("MGR-4", "MGR-6", "MGR-7", "MGR-8", "LOAD-5")),
    Fix("forks", ("LIFE-11", "LIFE-22", "FS-8", "SHARE-12", "THREAD-3")),
    Fix(
        "children",
        ("START-6", "CHAN-10", "LIFE-12", "SPAWN-3", "SPAWN-5", "SPAWN-9"),
    ),
)
"""All fixes, in the order in which they are applied."""

NAMES = tuple(fix.name for fix in FIXES)

applied: list[str] = []
"""The names of the fixes that this process has, in order."""


def install(names: Iterable[str] = NAMES) -> None:
    """Apply the fixes of these names that are not applied yet, in the order of all."""
    chosen = set(names)
    for fix in FIXES:
        if fix.name in chosen and fix.name not in applied:
            applied.append(fix.name)
            fix.apply()


def with_needs(name: str) -> tuple[str, ...]:
    """Return the names of a fix and of those that it needs, in the order of all."""
    needed = {name, *next(fix.needs for fix in FIXES if fix.name == name)}
    return tuple(one for one in NAMES if one in needed)


def without(name: str) -> tuple[str, ...]:
    """Return the names of all fixes but one and those that need it."""
    return tuple(fix.name for fix in FIXES if name not in (fix.name, *fix.needs))
