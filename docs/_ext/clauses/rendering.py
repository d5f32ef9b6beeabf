"""Writes parts of pages by templates, where Sphinx has no nodes for what they are."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import zip_longest
from pathlib import Path
from statistics import mean, median
from typing import Any

from docutils import nodes
from elements import are_numbers
from jinja2 import (
    Environment,
    FileSystemLoader,
    StrictUndefined,
    select_autoescape,
)
from markupsafe import Markup

EXTENSIONS = Path(__file__).parents[1]


@cache
def _templates() -> Environment:
    made = Environment(
        extensions=["jinja2.ext.do"],
        loader=FileSystemLoader(sorted(EXTENSIONS.glob("*/templates"))),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"mean": mean, "median": median, "number_columns": number_columns}
    made.filters["with_code"] = with_code
    return made


def rendered(template: str, **content: Any) -> nodes.raw:
    """Return what a template makes of `content`, as a part of the page."""
    return nodes.raw("", written(template, **content), format="html")


def written(template: str, **content: Any) -> str:
    """Return the text that a template makes of `content`."""
    return _templates().get_template(template).render(content)


def with_code(text: str) -> Markup:
    """Return a sentence in which what stands between backticks is code."""
    code = Markup('<code class="docutils literal">{}</code>')
    parts = enumerate(text.split("`"))
    return Markup("").join(code.format(one) if n % 2 else one for n, one in parts)


def number_columns(width: int, rows: Iterable[Iterable[object]]) -> list[bool]:
    """Return of each column of a table whether it shows numbers."""
    found = [are_numbers(column) for column in zip_longest(*rows, fillvalue="")]
    return found or [False] * width
