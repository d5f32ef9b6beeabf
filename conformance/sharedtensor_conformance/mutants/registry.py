"""Registers the mutants: the reference with one fault each.

A mutant names the functions of the reference that it replaces. It is a function that
gets the originals and returns their replacements:

    @mutant("drops_grad", "GRAD-2", replaces="protocol.export_grad")
    def drops_grad(export_grad):
        \"\"\"A grad that is present is not sent.\"\"\"
        return lambda tensor: None

The decorator also names the clauses that the mutant breaks. A test that cites one of
them has to fail. There is one module for each chapter.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from sharedtensor_conformance.mutants import chapters

Fault = Callable[..., Any]

ABSENT = object()
"""A fault returns this in place of a replacement, to delete the name."""


@dataclass(frozen=True)
class Mutant:
    """One named fault of the reference."""

    name: str
    clauses: tuple[str, ...]
    replaces: tuple[str, ...]
    sentence: str
    fault: Fault
    file: str
    line: int
    histories: str = ""


class UnknownMutant(LookupError):
    """There is no mutant with this name."""


class UnknownTarget(LookupError):
    """The reference does not have the name that a mutant replaces."""


_registry: dict[str, Mutant] = {}


def mutant(
    name: str,
    *clauses: str,
    replaces: str | tuple[str, ...],
    histories: str = "",
) -> Callable[[Fault], Fault]:
    """Register a fault that breaks `clauses`; its docstring describes it.

    Args:
        name: its name, after ``mutant:`` in ``--impl``.
        clauses: the clauses that it breaks.
        replaces: the dotted names below `sharedtensor` that it replaces; the fault gets
            the originals in this order and returns as many replacements.
        histories: the test of random histories that finds it, if no other test does and
            it needs more histories than usual.

    Raises:
        ValueError: the fault replaces nothing, or another fault has the same name.
    """
    if not replaces:
        raise ValueError(f"the mutant {name!r} replaces nothing")

    def register(fault: Fault) -> Fault:
        if name in _registry:
            raise ValueError(f"there are two mutants {name!r}")
        code = getattr(fault, "__wrapped__", fault).__code__
        sentence = " ".join((fault.__doc__ or "").split())
        file = code.co_filename.rpartition("/")[2]
        targets = (replaces,) if isinstance(replaces, str) else replaces
        _registry[name] = Mutant(
            name,
            clauses,
            targets,
            sentence,
            fault,
            file,
            code.co_firstlineno,
            histories,
        )
        return fault

    return register


@cache
def catalogue() -> list[Mutant]:
    """Return all mutants, sorted by file and line."""
    for module in pkgutil.iter_modules(chapters.__path__, f"{chapters.__name__}."):
        importlib.import_module(module.name)
    return sorted(_registry.values(), key=lambda found: (found.file, found.line))


def find(name: str) -> Mutant:
    """Return the mutant `name`.

    Raises:
        UnknownMutant: there is no mutant with this name.
    """
    catalogue()
    if name not in _registry:
        raise UnknownMutant(f"there is no mutant {name!r}")
    return _registry[name]


def locate(target: str) -> tuple[Any, str]:
    """Return the module or class that contains `target`, and its name there.

    Raises:
        UnknownTarget: the reference does not have this name.
    """
    *path, attribute = target.split(".")
    holder: Any = importlib.import_module("sharedtensor")
    for part in path:
        if isinstance(holder, ModuleType):
            with suppress(ModuleNotFoundError):
                importlib.import_module(f"{holder.__name__}.{part}")
        holder = getattr(holder, part, None)
    if not hasattr(holder, attribute):
        raise UnknownTarget(f"the reference has no {target}")
    return holder, attribute


@cache
def apply(name: str) -> None:
    """Apply a mutant to the reference in this process; repeated calls do nothing.

    Raises:
        UnknownMutant: there is no mutant with this name.
        UnknownTarget: the reference does not have a name that the mutant replaces.
    """
    found = find(name)
    places = [locate(target) for target in found.replaces]
    returned = found.fault(*(getattr(*place) for place in places))
    replacements = returned if len(places) > 1 else (returned,)
    for place, replacement in zip(places, replacements, strict=True):
        if replacement is ABSENT:
            delattr(*place)
            continue
        if "<locals>" in getattr(replacement, "__qualname__", ""):
            # A pickle may name the step, and finds it by the name of the original.
            original = getattr(*place)
            replacement.__module__ = original.__module__
            replacement.__qualname__ = original.__qualname__
        setattr(*place, replacement)
