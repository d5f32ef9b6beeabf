"""Fills in the templates of a report, and escapes all text that comes from a run.

Plain text is not escaped. Jinja2 is imported only at the end of a run, because its
workers do not need it.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

FOLDER = "templates"


def filled(template: str, content: dict[str, Any]) -> str:
    """Return a template, filled in with `content`."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=not template.endswith(".txt"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.from_string(source(template)).render(content)


def safe(text: str) -> str:
    """Return text that is not escaped, since it is no text of a run."""
    from markupsafe import Markup

    return Markup(text)


def source(name: str) -> str:
    """Return the text of a file in the folder of the templates."""
    folder = files("sharedtensor_conformance.report") / FOLDER
    return (folder / name).read_text(encoding="utf-8")
