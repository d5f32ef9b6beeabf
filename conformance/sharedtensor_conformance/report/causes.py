"""Reads the files that explain the programs in ``expectations/causes``.

Each program shows one deviation of a project in plain code of that project. The file
beside the folder of the programs, for example ``causes/torch.toml``, has what a bug
report needs in addition: the promise of the project's documentation that is broken, or
why there is none, the expected behaviour, and the place in the sources. The schema of
the file is ``causes.schema.json``.

Programs in the folder ``device`` show deviations on a device. They are not reported,
since the releases that were judged on a device are not the newest; the table ``device``
says only which promises they break, or why none.

Deviations of earlier releases only are not reported. Their programs are in a folder
``earlier``, and the file does not mention them.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path, PurePath
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from sharedtensor_conformance.expectations.programs import program_names

OF_THE_SITE = re.compile(r"P\d{2}")
"""The names of the promises on the site's page of promises."""


class CausesError(Exception):
    """A file of causes is malformed; the message names the file and the key."""


@dataclass(frozen=True)
class Promise:
    """A promise of a project's documentation, in our words, and its address."""

    says: str
    source: str


@dataclass(frozen=True)
class Cause:
    """The explanation of one program.

    Args:
        promises: the names of the broken promises; if none, `no_promise` says why.
        expected: what the program would show if the promises were kept.
        where: places, each a file and a function, for example ``pool.py: Pool.join``.
        related: addresses of related discussions.
    """

    where: tuple[str, ...]
    promises: tuple[str, ...] = ()
    no_promise: str = ""
    expected: str = ""
    related: tuple[str, ...] = ()


@dataclass(frozen=True)
class Causes:
    """The explanations of the programs of one project, by program name.

    Args:
        device: those of the programs that need a device.
    """

    causes: dict[str, Cause]
    promises: Mapping[str, Promise]
    device: dict[str, Cause]


def load_causes(path: Path) -> Causes:
    """Return the content of the file `path`.

    Raises:
        CausesError: the file cannot be read or violates its schema; its programs are
            not exactly those in the folder beside it; or it names a promise that is
            neither in it nor on the site.
    """
    data = _parsed(path)
    _validate(data, path)
    causes = {name: _cause(entry) for name, entry in data["causes"].items()}
    device = {name: _cause(entry) for name, entry in data.get("device", {}).items()}
    promises = {name: Promise(**one) for name, one in data.get("promises", {}).items()}
    for table, found, folder in (
        ("causes", causes, path.stem),
        ("device", device, "device"),
    ):
        _require_each_program(table, set(found), path, folder)
        _require_promises(table, found, path, set(promises))
    return Causes(causes, promises, device)


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
        where=tuple(entry.get("where", ())),
        promises=tuple(entry.get("promises", ())),
        no_promise=entry.get("no-promise", ""),
        expected=entry.get("expected", ""),
        related=tuple(entry.get("related", ())),
    )


def _require_each_program(table: str, named: set[str], path: Path, folder: str) -> None:
    """Raise `CausesError` unless a table is about the programs in a folder."""
    paths = (PurePath(one) for one in program_names(path.parent, path.stem))
    programs = {one.stem for one in paths if one.parent.name == folder}
    for name in sorted(programs - named):
        raise CausesError(f"{path}: {table}.{name} is missing: the program is there")
    for name in sorted(named - programs):
        raise CausesError(f"{path}: {table}.{name}: there is no {folder}/{name}.py")


def _require_promises(
    table: str, causes: Mapping[str, Cause], path: Path, known: set[str]
) -> None:
    """Raise `CausesError` if a cause names a promise that is nowhere."""
    for name, cause in causes.items():
        for promise in cause.promises:
            if promise not in known and not OF_THE_SITE.fullmatch(promise):
                raise CausesError(
                    f"{path}: {table}.{name}: the promise {promise!r} is not known: "
                    f"write [promises.{promise}], or use one of the site, like P02"
                )
