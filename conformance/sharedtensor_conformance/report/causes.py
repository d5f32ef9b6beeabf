"""What a report of a deviation to its project needs beside the program that shows it.

A program in ``expectations/causes`` shows a deviation in plain code of a project.
Beside the folder of its programs lies a file, such as ``causes/torch.toml``, that says
of each one which promise of the project's own documentation it breaks, or why it breaks
none, what was expected, and where in the sources it comes from. ``causes.schema.json``
has the form of the file. What only earlier releases show is not reported: their
programs lie in a folder ``earlier``, and the file is not about them.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

OF_THE_SITE = re.compile(r"P\d{2}")
"""The names of the promises that clauses answer; the page of promises says them."""


class CausesError(Exception):
    """A file of causes is malformed; the sentence names the file and the key."""


@dataclass(frozen=True)
class Promise:
    """What a project's documentation says, in our words, and its address."""

    says: str
    source: str


@dataclass(frozen=True)
class Cause:
    """What is known of one program.

    Args:
        promises: the names of those that it breaks; none where `no_promise` says why.
        expected: what the program would show if they were kept.
        where: places, each a file and a function, such as ``pool.py: Pool.join``.
        related: addresses of threads about something near it.
    """

    where: tuple[str, ...]
    promises: tuple[str, ...] = ()
    no_promise: str = ""
    expected: str = ""
    related: tuple[str, ...] = ()


@dataclass(frozen=True)
class Causes:
    """What is known of the programs of one project, by their names."""

    causes: Mapping[str, Cause]
    promises: Mapping[str, Promise]


def load_causes(path: Path) -> Causes:
    """Return what the file `path` says.

    Raises:
        CausesError: it cannot be read, or violates its schema; it is not about exactly
            the programs in the folder beside it; or it names a promise that is neither
            in it nor one of the site.
    """
    data = _parsed(path)
    _validate(data, path)
    causes = {name: _cause(entry) for name, entry in data["causes"].items()}
    promises = {name: Promise(**one) for name, one in data.get("promises", {}).items()}
    _require_each_program(set(causes), path)
    for name, cause in causes.items():
        for promise in cause.promises:
            if promise not in promises and not OF_THE_SITE.fullmatch(promise):
                raise CausesError(
                    f"{path}: causes.{name}: the promise {promise!r} is not known: "
                    f"write [promises.{promise}], or use one of the site, such as P02"
                )
    return Causes(causes, promises)


def _parsed(path: Path) -> Any:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise CausesError(f"{path} cannot be read: {reason}") from error
    except ValueError as error:
        raise CausesError(f"{path} is not TOML: {error}") from error


def _validate(data: Any, path: Path) -> None:
    source = files("sharedtensor_conformance.report").joinpath("causes.schema.json")
    schema = json.loads(source.read_text(encoding="utf-8"))
    error = best_match(Draft202012Validator(schema).iter_errors(data))
    if error is not None:
        where = ".".join(str(step) for step in error.absolute_path) or "the file"
        raise CausesError(f"{path}: {where} violates the schema: {error.message}")


def _cause(entry: Mapping[str, Any]) -> Cause:
    return Cause(
        where=tuple(entry["where"]),
        promises=tuple(entry.get("promises", ())),
        no_promise=entry.get("no-promise", ""),
        expected=entry.get("expected", ""),
        related=tuple(entry.get("related", ())),
    )


def _require_each_program(named: set[str], path: Path) -> None:
    programs = {program.stem for program in path.with_suffix("").glob("*.py")}
    for name in sorted(programs - named):
        raise CausesError(f"{path}: causes.{name} is missing: the program is there")
    for name in sorted(named - programs):
        folder = path.with_suffix("").name
        raise CausesError(f"{path}: causes.{name}: there is no {folder}/{name}.py")
