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
from typing import TYPE_CHECKING, Any

from sharedtensor_conformance.adapter import Implementation

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

GROUP = "sharedtensor_conformance.adapters"
SHIPPED = (
    "reference",
    "torch",
    "torch-cuda",
    "paddle",
    "mindspore",
    "stdlib",
    "sharedarray",
    "shared-ndarray2",
    "tensordict",
    "copy",
    "numpy-copy",
)
IN_A_CHECKOUT = {"torch-patched": "torch_patches.adapter"}
"""The modules of adapters that are experiments, and not part of the wheel."""

DEFAULT_ATTRIBUTE = "conformance_adapter"
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*(:[A-Za-z_][\w.]*)?")


class LoadingError(Exception):
    """The adapter cannot be loaded; the message is one sentence."""


def target_of(name: str) -> str:
    """Return ``module:attribute`` for a value of ``--impl``.

    A name that no adapter has may be that of a module; loading it shows that.

    Raises:
        LoadingError: neither an adapter nor a module can have this name.
    """
    if name in SHIPPED:
        module = name.replace("-", "_")
        return f"sharedtensor_conformance.adapters.{module}:{DEFAULT_ATTRIBUTE}"
    if name in IN_A_CHECKOUT:
        return f"{IN_A_CHECKOUT[name]}:{DEFAULT_ATTRIBUTE}"
    for point in _entry_points():
        if point.name == name:
            return point.value
    module, _, attribute = name.partition(":")
    if module.endswith(".py"):
        raise LoadingError(_not_the_file(name, module, attribute))
    if not _REFERENCE.fullmatch(name):
        raise LoadingError(_unknown(name))
    return f"{module}:{attribute or DEFAULT_ATTRIBUTE}"


def _entry_points() -> EntryPoints:
    from importlib.metadata import entry_points

    return entry_points(group=GROUP)


def _unknown(name: str) -> str:
    """Return the sentence about a name that neither an adapter nor a module has."""
    from difflib import get_close_matches

    known = [*SHIPPED, *(point.name for point in _entry_points())]
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return (
        f"there is no implementation {name!r}: {hint}no adapter and no importable "
        f"module has this name; choose one of {', '.join(dict.fromkeys(known))} or "
        f"mutant:NAME, or give package.module[:attribute] and put the folder of the "
        f"module on PYTHONPATH"
    )


def _not_the_file(name: str, file: str, attribute: str) -> str:
    """Return the sentence about a file that is given in place of its module."""
    from pathlib import PurePath

    stem = PurePath(file).stem
    module = stem if stem.isidentifier() else "mypkg_conformance"
    return (
        f"{name!r} names a file: give the module and not the file, for example "
        f"{module}:{attribute or DEFAULT_ATTRIBUTE}, and put the folder of the module "
        f"on PYTHONPATH"
    )


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
        LoadingError: there is no adapter of this name, its module raises an exception,
            or it is no `Implementation`.
    """
    if name.startswith("mutant:"):
        return _mutated(name)
    target = target_of(name)
    try:
        found = resolve(target)
    except (ImportError, AttributeError) as error:
        if _is_missing(target, error):
            raise LoadingError(_missing(name, error)) from None
        raise LoadingError(why_not_loaded(name, error, str(error))) from error
    except Exception as error:  # whatever the module raises
        raise LoadingError(why_not_loaded(name, error)) from error
    if not isinstance(found, Implementation):
        raise LoadingError(
            f"{target} is a {type(found).__name__}, not an Implementation "
            f"(sharedtensor_conformance.adapter.Implementation)"
        )
    return found


def why_not_loaded(name: str, error: BaseException, said: str = "") -> str:
    """Return the sentence about an exception that an adapter raised, with its place.

    The exception is told by what it `said`, or by its type and its first line.
    """
    from sharedtensor_conformance.adapters.import_errors import place_of
    from sharedtensor_conformance.sanitize import first_line

    said = said or first_line(error)
    return f"the adapter {name!r} cannot be loaded: {said}{place_of(error)}"


def _is_missing(target: str, error: Exception) -> bool:
    """Return whether `error` says that the module of `target` cannot be found."""
    module = target.partition(":")[0]
    missing = getattr(error, "name", None)
    is_part = missing is not None and f"{module}.".startswith(f"{missing}.")
    return isinstance(error, ModuleNotFoundError) and is_part


def _missing(name: str, error: Exception) -> str:
    """Return the sentence about an adapter whose module cannot be found."""
    if ":" not in name:
        return _unknown(name)
    return (
        f"the adapter {name!r} cannot be loaded: {error}; put the folder of the module "
        f"on PYTHONPATH"
    )


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
