"""Looks names and contexts of the drop-in module up in a process."""

from __future__ import annotations

from sharedtensor_conformance.harness.actor import Actor


def missing_in_module(actor: Actor, names: list[str]) -> list[str]:
    """Return the names that the module does not have."""
    module = actor.operations.multiprocessing
    return [name for name in names if not hasattr(module, name)]


def missing_in_context(actor: Actor, method: str, names: list[str]) -> list[str]:
    """Return the names that the context of a start method does not have."""
    context = actor.context(method)
    return [name for name in names if not hasattr(context, name)]


def start_method_of_context(actor: Actor, method: str) -> str:
    """Return the start method that the context of `method` reports."""
    context = actor.context(method)
    return str(actor.by_implementation(context.get_start_method))


def look_up_context(actor: Actor, method: str) -> None:
    """Call ``get_context(method)``."""
    actor.context(method)
