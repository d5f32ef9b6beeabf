"""Fills in the templates of a report: everything that a run said is escaped.

Jinja2 is imported where a page is written and nowhere else, since a run of the suite
needs no page.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

FOLDER = "templates"


def filled(template: str, content: dict[str, Any]) -> str:
    """Return what a template makes of `content`."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.from_string(source(template)).render(content)


def source(name: str) -> str:
    """Return the text of a file beside the templates."""
    folder = files("sharedtensor_conformance.report") / FOLDER
    return (folder / name).read_text(encoding="utf-8")
