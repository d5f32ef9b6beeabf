"""Parts of pages for extensions that do not write a template of their own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from clauses.rendering import rendered
from docutils import nodes
from markupsafe import Markup
from sphinx.application import Sphinx


def paragraph(text: str, classes: Iterable[str] = ()) -> nodes.paragraph:
    """Return a paragraph."""
    return nodes.paragraph("", text, classes=[*classes])


def missing(text: str) -> nodes.paragraph:
    """Return a sentence about something that is not there."""
    return paragraph(text, ["missing"])


def table(head: Iterable[object], rows: Iterable[Iterable[object]]) -> nodes.raw:
    """Return a table in a box that scrolls where the page is too narrow."""
    lines = [list(row) for row in rows]
    return rendered("table.html", head=list(head), rows=lines)


def folded_table(line: str, shown: nodes.raw) -> nodes.raw:
    """Return a long table, folded under a line that says what it has."""
    return rendered("folded.html", line=line, shown=Markup(shown.astext()))


def setup(app: Sphinx) -> dict[str, Any]:
    """Do nothing: Sphinx asks each extension for it."""
    return {"version": "1", "parallel_read_safe": True}
