"""Writes parts of pages by templates, where Sphinx has no nodes for what they are."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from jinja2 import Environment, FileSystemLoader, StrictUndefined

EXTENSIONS = Path(__file__).parents[1]


@cache
def _templates() -> Environment:
    return Environment(
        loader=FileSystemLoader(sorted(EXTENSIONS.glob("*/templates"))),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def rendered(template: str, **content: Any) -> nodes.raw:
    """Return what a template makes of `content`, as a part of the page."""
    html = _templates().get_template(template).render(content)
    return nodes.raw("", html, format="html")
