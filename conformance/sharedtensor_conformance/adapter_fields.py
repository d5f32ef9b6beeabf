"""Validates the fields of an adapter's `Implementation` with ``adapter.schema.json``.

The fields come as JSON from a child process (`Implementation.as_data`), so that the
adapter is not imported here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker


def load_schema() -> dict[str, Any]:
    """Return the JSON Schema of the fields."""
    source = files("sharedtensor_conformance").joinpath("adapter.schema.json")
    schema: dict[str, Any] = json.loads(source.read_text(encoding="utf-8"))
    return schema


def problems_of_fields(data: Mapping[str, Any]) -> list[str]:
    """Return which fields hold something of a wrong kind, a sentence each."""
    return list(dict.fromkeys(_problems(data)))


def _problems(data: Mapping[str, Any]) -> Iterator[str]:
    schema = load_schema()
    validator = Draft202012Validator(schema, format_checker=FormatChecker(["regex"]))
    for error in validator.iter_errors(data):
        if not error.absolute_path:
            yield error.message
            continue
        field = str(error.absolute_path[0])
        kind = _title(schema["properties"][field], schema)
        yield f"{field} has to be {kind}; it is {_shown(data[field]):.80}"


def _title(field: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    if "$ref" in field:
        field = schema["$defs"][field["$ref"].removeprefix("#/$defs/")]
    return str(field["title"])


def _shown(value: Any) -> str:
    match value:
        case {"python": str(text)}:
            return text
        case list():
            return f"[{', '.join(map(_shown, value))}]"
    return repr(value)
