"""Writes a page for each file that is linked to, with an anchor on each line."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.lexers.special import TextLexer
from pygments.util import ClassNotFound
from sphinx.application import Sphinx

from clauses.domain import NAME, SOURCE_PAGES
from clauses.shown_files import text_of


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the source pages: their name, context and template."""
    root, linked = app.env.domains[NAME].backing.root, app.env.domains[NAME].linked
    chapters = {f"spec/{path.name}" for path in root.glob("spec/*.md")}
    for file in sorted(linked | chapters):
        text = text_of(root, file)
        title, code = html.escape(file), marked_up(file, text)
        body = f'<h1>{title}</h1>\n<div class="source-page">{code}</div>'
        yield f"{SOURCE_PAGES}/{file}", {"title": title, "body": body}, "page.html"


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


def navigation() -> Callable[..., None]:
    """Return what makes the list of pages beside source pages once for each depth.

    Its links depend on the depth of the page alone, and making it takes most of the
    time of a source page.
    """
    made: dict[object, str] = {}

    def share(app: Sphinx, page: str, template: str, context: Any, _: Any) -> None:
        make = context.get("toctree")
        if make and page.startswith(f"{SOURCE_PAGES}/"):
            context["toctree"] = partial(once, make, page.count("/"))

    def once(make: Callable[..., str], depth: int, **options: Any) -> str:
        key = depth, *sorted(options.items())
        if key not in made:
            made[key] = make(**options)
        return made[key]

    return share


def setup(app: Sphinx) -> None:
    """Register the pages."""
    # Before the theme, which asks for the list at the default priority of 500.
    app.connect("html-page-context", navigation(), priority=400)
    app.connect("html-collect-pages", source_pages)
