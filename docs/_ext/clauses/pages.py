"""Writes a page for each file that is linked to, with an anchor on each line."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator
from typing import Any

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.lexers.special import TextLexer
from pygments.util import ClassNotFound
from sphinx.application import Sphinx

from clauses.domain import NAME, SOURCE_PAGES


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the source pages: their name, context and template."""
    root, linked = app.env.domains[NAME].backing.root, app.env.domains[NAME].linked
    chapters = {f"spec/{path.name}" for path in root.glob("spec/*.md")}
    for file in sorted(linked | chapters):
        text = (root / file).read_text(encoding="utf-8")
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


class Navigation:
    """The list of pages beside a source page.

    Its links depend on the depth of the page alone, and making it takes most of the
    time of a source page. So it is made once for each depth.
    """

    def __init__(self) -> None:
        self.made: dict[object, str] = {}

    def share(
        self, app: Sphinx, page: str, template: str, context: Any, _: Any
    ) -> None:
        """Put what is made already in place of what makes the list."""
        make = context.get("toctree")
        if make and page.startswith(f"{SOURCE_PAGES}/"):
            depth = page.count("/")
            context["toctree"] = lambda **options: self.once(make, depth, options)

    def once(
        self, make: Callable[..., str], depth: int, options: dict[str, Any]
    ) -> str:
        """Return the list for a depth."""
        key = depth, *sorted(options.items())
        if key not in self.made:
            self.made[key] = make(**options)
        return self.made[key]


def setup(app: Sphinx) -> None:
    """Register the pages."""
    # Before the theme, which asks for the list at the default priority of 500.
    app.connect("html-page-context", Navigation().share, priority=400)
    app.connect("html-collect-pages", source_pages)
