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
import sys
import tempfile
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any

from sharedtensor_conformance import mutants
from sharedtensor_conformance.adapter import (
    Implementation,
    problems_of,
    problems_of_fields,
)
from sharedtensor_conformance.showing import first_line, printable

GROUP = "sharedtensor_conformance.adapters"
SHIPPED = (
    "reference",
    "torch",
    "torch-cuda",
    "paddle",
    "mindspore",
    "stdlib",
    "copy",
    "numpy-copy",
)
DEFAULT_ATTRIBUTE = "conformance_adapter"
DEADLINE = 120.0
LONGEST = 2000  # characters of a reason why an adapter cannot be loaded
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

    The child has a keeper, so nothing of it is left, whatever it starts or ignores.
    What it prints is not looked at, and it is not waited for once it has answered.

    Raises:
        LoadingError: it cannot be loaded, crashes, hangs or is no adapter.
    """
    if not name.startswith("mutant:"):
        _target(name)  # a name that cannot be needs no child
    # Here, since owner and peers use this module and have no keeper to start.
    from sharedtensor_conformance.harness.checks import wait_until
    from sharedtensor_conformance.harness.keeping import Keeper, last_line

    with tempfile.TemporaryDirectory(prefix="sts-", ignore_cleanup_errors=True) as root:
        answer, log = Path(root, "answer"), Path(root, "log")
        keeper = Keeper(_describing(name, root), deadline)

        def answered_or_ended() -> bool:
            return answer.exists() or keeper.ask("status") is not None

        try:
            wait_until(answered_or_ended, deadline)
            if answer.exists():
                return _described(json.loads(answer.read_text()))
            how = _how_it_ended(keeper.ask("status"), deadline)
            said = last_line(log) or "it printed nothing"
        finally:
            keeper.close()
    raise LoadingError(f"the adapter {name!r} {how}: {said}")


def _describing(name: str, root: str) -> dict[str, Any]:
    """Return the job of the keeper of the child that describes an adapter."""
    temporary = Path(root, "t")
    temporary.mkdir()
    variables = {"SHAREDTENSOR_CONFORMANCE_DESCRIBE": "1", "TMPDIR": str(temporary)}
    return {
        "argv": [sys.executable, "-m", __name__, name, str(Path(root, "answer"))],
        "environment": os.environ | variables,
        "root": root,
        "folder": str(temporary),
        "log": str(Path(root, "log")),
        "pattern": "",
        "manager": "",
        "private": True,
    }


def _how_it_ended(status: int | None, deadline: float) -> str:
    if status is None:
        return f"did not finish loading within {deadline:g} s"
    how = f"status {status}" if status >= 0 else f"signal {-status}"
    return f"could not be loaded: its process ended with {how}"


def _described(data: dict[str, Any]) -> Description:
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
        if problems := problems_of_fields(implementation):
            return {"error": f"the adapter {name!r} is malformed: {problems[0]}"}
        operations = _resolve(implementation.operations)()
        return {
            "implementation": implementation.as_data(),
            "problems": problems_of(implementation, operations),
            "operations": sorted(n for n in dir(operations) if not n.startswith("_")),
        }
    except LoadingError as error:
        return {"error": printable(str(error)[:LONGEST])}
    except BaseException as error:  # it may call `sys.exit`
        said = first_line(error)
        return {"error": f"the adapter {name!r} cannot be loaded: {said}"}


def _answer(name: str, file: Path) -> None:
    """Write the description of an adapter, whole or not at all."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps(_describe_here(name)))
    part.rename(file)


if __name__ == "__main__":
    _answer(sys.argv[1], Path(sys.argv[2]))
