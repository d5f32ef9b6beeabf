"""Mutants: the reference with one fault each, to show that the suite can see it.

A mutant is a function that gets the reference's protocol steps and replaces one of
them. Its decorator names the clauses that it breaks; a test that cites one of them has
to fail. One file a chapter.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

Fault = Callable[[Any], None]


@dataclass(frozen=True)
class Mutant:
    """One named fault of the reference."""

    name: str
    clauses: tuple[str, ...]
    sentence: str
    fault: Fault
    file: str
    line: int


class UnknownMutant(LookupError):
    """There is no mutant of that name."""


_registry: dict[str, Mutant] = {}


def mutant(name: str, *clauses: str) -> Callable[[Fault], Fault]:
    """Register a fault that breaks `clauses`; its docstring is its sentence.

    Raises:
        ValueError: another fault has the name.
    """

    def register(fault: Fault) -> Fault:
        if name in _registry:
            raise ValueError(f"there are two mutants {name!r}")
        code = getattr(fault, "__wrapped__", fault).__code__
        sentence = " ".join((fault.__doc__ or "").split())
        file = code.co_filename.rpartition("/")[2]
        _registry[name] = Mutant(
            name, clauses, sentence, fault, file, code.co_firstlineno
        )
        return fault

    return register


@cache
def catalogue() -> list[Mutant]:
    """Return all mutants, by file and line."""
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)
    return sorted(_registry.values(), key=lambda found: (found.file, found.line))


def find(name: str) -> Mutant:
    """Return the mutant `name`.

    Raises:
        UnknownMutant: there is none.
    """
    catalogue()
    if name not in _registry:
        raise UnknownMutant(f"there is no mutant {name!r}")
    return _registry[name]


@cache
def apply(name: str) -> None:
    """Break the reference in this process, once."""
    from sharedtensor.steps import steps

    find(name).fault(steps)
