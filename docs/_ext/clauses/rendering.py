"""Writes parts of pages by templates, where Sphinx has no nodes for what they are."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from jinja2 import (
    Environment,
    FileSystemLoader,
    StrictUndefined,
    select_autoescape,
)

EXTENSIONS = Path(__file__).parents[1]


@cache
def _templates() -> Environment:
    return Environment(
        loader=FileSystemLoader(sorted(EXTENSIONS.glob("*/templates"))),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def rendered(template: str, **content: Any) -> nodes.raw:
    """Return what a template makes of `content`, as a part of the page."""
    return nodes.raw("", written(template, **content), format="html")


def written(template: str, **content: Any) -> str:
    """Return the text that a template makes of `content`."""
    return _templates().get_template(template).render(content)
