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
from sphinx.environment import BuildEnvironment

from clauses.domain import NAME, SOURCE_PAGES
from clauses.shown_files import is_shown, text_of


def linked_files(env: BuildEnvironment) -> set[str]:
    """Return the files that some page links to, by their path from the root."""
    citations = env.clauses_evidence.everything()
    found = {citation.file for citation in citations}
    found.update(place.file for one in citations for place in one.replaces)
    examples = env.clauses_examples.values()
    found.update(place.file for one in examples for place in one.calls)
    known = env.clauses_deviations.values()
    found.update(report.file for deviating in known for report in deviating.reports)
    found.update(programs(env))
    found.update(f"spec/{path.name}" for path in env.clauses_root.glob("spec/*.md"))
    for targets in env.domaindata[NAME]["sources"].values():
        found.update(target.partition("#")[0] for target in targets)
    return {file for file in found if is_shown(env.clauses_root, file)}


def programs(env: BuildEnvironment) -> set[str]:
    """Return the files with programs that show deviations."""
    columns = env.clauses_columns
    judged = (one for column in columns for one in column.judgements.values())
    causes = {cause for judgement in judged for cause in judgement.causes}
    return {cause.program for cause in causes if cause.program}


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the source pages: their name, context and template."""
    for file in sorted(linked_files(app.env)):
        text = text_of(app.env.clauses_root, file)
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
    return highlight(text, lexer_for(file), formatter).replace('id="L-', 'id="L')


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
