"""Writes a page for each file that is linked to, with an anchor on each line."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.lexers.special import TextLexer
from pygments.util import ClassNotFound
from sphinx.application import Sphinx

from clauses.domain import NAME, SOURCE_PAGES
from clauses.shown_files import text_of

Page = tuple[str, dict[str, Any], str]
"""The name of a page, its context and its template, as Sphinx takes them."""


def beside(app: Sphinx, page: str) -> Callable[..., str]:
    """Return what makes the list of pages beside a page, made once: it takes long."""
    return cache(partial(app.builder._get_local_toctree, page))


def source_pages(app: Sphinx) -> Iterator[Page]:
    """Yield the source pages; the links beside them depend on their depth alone."""
    lists: dict[int, Callable[..., str]] = {}
    root, linked = app.env.domains[NAME].backing.root, app.env.domains[NAME].linked
    chapters = {f"spec/{path.name}" for path in root.glob("spec/*.md")}
    for file in sorted(linked | chapters):
        text = text_of(root, file)
        title, code = html.escape(file), marked_up(file, text)
        body = f'<h1>{title}</h1>\n<div class="source-page">{code}</div>'
        name = f"{SOURCE_PAGES}/{file}"
        toctree = lists.setdefault(name.count("/"), beside(app, name))
        yield name, {"title": title, "body": body, "toctree": toctree}, "page.html"


def marked_up(file: str, text: str) -> str:
    """Return `text` as HTML, with the anchors ``L1``, ``L2`` and so on."""
    formatter = HtmlFormatter(
        linenos="inline",
        lineanchors="L",
        anchorlinenos=True,
        linespans="line",
    )
    made = highlight(text, lexer_for(file), formatter)
    return made.replace('id="L-', 'id="L').replace('href="#L-', 'href="#L')


def lexer_for(file: str) -> Any:
    """Return the lexer for a file, by its name."""
    try:
        return get_lexer_for_filename(file)
    except ClassNotFound:
        return TextLexer()


def setup(app: Sphinx) -> None:
    """Register the pages."""
    app.connect("html-collect-pages", source_pages)
