"""Finds an adapter by its string, and describes it without importing it here.

``--impl`` is the name of a shipped adapter or of an entry point in the group
``sharedtensor_conformance.adapters``, ``package.module[:attribute]``, or
``mutant:NAME``. Importing somebody's adapter may import, and crash, the implementation;
so `describe` does it in a child with a deadline.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Any

from sharedtensor_conformance import mutants
from sharedtensor_conformance.adapter import Implementation, problems_of

GROUP = "sharedtensor_conformance.adapters"
SHIPPED = ("reference", "torch", "stdlib", "copy", "numpy-copy")
DEFAULT_ATTRIBUTE = "conformance_adapter"
DEADLINE = 120.0
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*(:[A-Za-z_][\w.]*)?")


class LoadingError(Exception):
    """The adapter cannot be used; the message says why, in one sentence."""


@dataclass(frozen=True)
class Description:
    """An adapter as the controller sees it: plain data."""

    implementation: Implementation
    problems: list[str]
    operations: list[str]


def _target(name: str) -> str:
    """Return ``module:attribute`` for the string that `--impl` got."""
    if name in SHIPPED:
        module = name.replace("-", "_")
        return f"sharedtensor_conformance.adapters.{module}:{DEFAULT_ATTRIBUTE}"
    for point in entry_points(group=GROUP):
        if point.name == name:
            return point.value
    if not _REFERENCE.fullmatch(name) or not ("." in name or ":" in name):
        known = [*SHIPPED, *(point.name for point in entry_points(group=GROUP))]
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise LoadingError(
            f"there is no implementation {name!r}: {hint}known are "
            f"{', '.join(dict.fromkeys(known))}, mutant:NAME and "
            f"package.module[:attribute]"
        )
    return name if ":" in name else f"{name}:{DEFAULT_ATTRIBUTE}"


def _resolve(target: str) -> Any:
    module, _, attribute = target.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def load_implementation(name: str) -> Implementation:
    """Return the adapter's first half. Imports the adapter's module.

    Raises:
        LoadingError: there is none of this name, or it is no `Implementation`.
    """
    if name.startswith("mutant:"):
        return _mutated(name)
    target = _target(name)
    try:
        found = _resolve(target)
    except (ImportError, AttributeError) as error:
        raise LoadingError(f"the adapter {name!r} cannot be loaded: {error}") from error
    if not isinstance(found, Implementation):
        raise LoadingError(
            f"{target} is a {type(found).__name__}, not an Implementation "
            f"(sharedtensor_conformance.adapter.Implementation)"
        )
    return replace(found, version=_version(found.version))


def _mutated(name: str) -> Implementation:
    try:
        mutants.find(name.removeprefix("mutant:"))
    except mutants.UnknownMutant as error:
        raise LoadingError(
            f"{error}: `shared-tensor-spec mutants` lists them"
        ) from None
    return replace(load_implementation("reference"), name=name)


def _version(declared: str) -> str:
    prefix = "distribution:"
    if not declared.startswith(prefix):
        return declared or "unknown"
    try:
        return version(declared.removeprefix(prefix))
    except PackageNotFoundError as error:
        raise LoadingError(
            f"the distribution {declared.removeprefix(prefix)!r} is not installed in "
            f"this environment: install it next to the suite"
        ) from error


def load_operations(name: str) -> Any:
    """Return the adapter's second half; for owner, peers and `describe` only."""
    return _resolve(load_implementation(name).operations)()


def describe(name: str, deadline: float = DEADLINE) -> Description:
    """Return what the adapter declares, loaded in a child with a deadline.

    Raises:
        LoadingError: it cannot be loaded, crashes, hangs or is no adapter.
    """
    if not name.startswith("mutant:"):
        _target(name)  # a name that cannot be needs no child
    command = [sys.executable, "-m", __name__, name]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=deadline,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"SHAREDTENSOR_CONFORMANCE_DESCRIBE": "1"},
        )
    except subprocess.TimeoutExpired:
        raise LoadingError(
            f"the adapter {name!r} did not finish loading within {deadline:g} s"
        ) from None
    return _described(name, done)


def _described(name: str, done: subprocess.CompletedProcess[str]) -> Description:
    lines = done.stdout.splitlines()
    try:
        data = json.loads(lines[-1])
    except (IndexError, ValueError):
        last = done.stderr.strip().splitlines()[-1:] or ["it printed nothing"]
        raise LoadingError(
            f"loading the adapter {name!r} ended with status {done.returncode}: "
            f"{last[0]}"
        ) from None
    if "error" in data:
        raise LoadingError(data["error"])
    return Description(
        Implementation.from_data(data["implementation"]),
        data["problems"],
        data["operations"],
    )


def _describe_here(name: str) -> dict[str, Any]:
    try:
        implementation = load_implementation(name)
        operations = _resolve(implementation.operations)()
    except LoadingError as error:
        return {"error": str(error)}
    except Exception as error:
        said = f"{type(error).__name__}: {error}".rstrip(": ")
        return {"error": f"the adapter {name!r} cannot be loaded: {said}"}
    return {
        "implementation": implementation.as_data(),
        "problems": problems_of(implementation, operations),
        "operations": sorted(n for n in dir(operations) if not n.startswith("_")),
    }


if __name__ == "__main__":
    print(json.dumps(_describe_here(sys.argv[1])))
