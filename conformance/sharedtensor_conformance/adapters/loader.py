"""Finds and loads an adapter by the value of ``--impl``.

The value is the name of a shipped adapter or of an entry point in the group
``sharedtensor_conformance.adapters``, ``package.module[:attribute]``, or
``mutant:NAME``.

Every process of the suite runs this code when it starts, so modules that only some
values need are imported where they are used.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from typing import Any

from sharedtensor_conformance.adapter import Implementation

GROUP = "sharedtensor_conformance.adapters"
SHIPPED = (
    "reference",
    "torch",
    "torch-cuda",
    "torch-patched",
    "paddle",
    "mindspore",
    "stdlib",
    "sharedarray",
    "shared-ndarray2",
    "tensordict",
    "copy",
    "numpy-copy",
)
DEFAULT_ATTRIBUTE = "conformance_adapter"
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*(:[A-Za-z_][\w.]*)?")


class LoadingError(Exception):
    """The adapter cannot be loaded; the message is one sentence."""


def target_of(name: str) -> str:
    """Return ``module:attribute`` for a value of ``--impl``."""
    if name in SHIPPED:
        module = name.replace("-", "_")
        return f"sharedtensor_conformance.adapters.{module}:{DEFAULT_ATTRIBUTE}"
    from importlib.metadata import entry_points

    points = entry_points(group=GROUP)
    for point in points:
        if point.name == name:
            return point.value
    if not _REFERENCE.fullmatch(name) or not ("." in name or ":" in name):
        from difflib import get_close_matches

        known = [*SHIPPED, *(point.name for point in points)]
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise LoadingError(
            f"there is no implementation {name!r}: {hint}choose one of "
            f"{', '.join(dict.fromkeys(known))}, mutant:NAME or "
            f"package.module[:attribute]"
        )
    return name if ":" in name else f"{name}:{DEFAULT_ATTRIBUTE}"


def resolve(target: str) -> Any:
    """Return what ``module:attribute`` names; import the module."""
    module, _, attribute = target.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def load_implementation(name: str) -> Implementation:
    """Return the adapter's `Implementation`; this imports the adapter's module.

    Raises:
        LoadingError: there is no adapter of this name, or it is no `Implementation`.
    """
    if name.startswith("mutant:"):
        return _mutated(name)
    target = target_of(name)
    try:
        found = resolve(target)
    except (ImportError, AttributeError) as error:
        raise LoadingError(f"the adapter {name!r} cannot be loaded: {error}") from error
    if not isinstance(found, Implementation):
        raise LoadingError(
            f"{target} is a {type(found).__name__}, not an Implementation "
            f"(sharedtensor_conformance.adapter.Implementation)"
        )
    return found


def _mutated(name: str) -> Implementation:
    from sharedtensor_conformance.mutants import registry

    try:
        registry.find(name.removeprefix("mutant:"))
    except registry.UnknownMutant as error:
        raise LoadingError(
            f"{error}: `shared-tensor-spec mutants` lists them"
        ) from None
    return replace(load_implementation("reference"), name=name)


def load_operations(name: str) -> Any:
    """Return the adapter's `Operations`; only for owner, peers and `describe`."""
    return resolve(load_implementation(name).operations)()
