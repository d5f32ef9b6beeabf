"""Makes the addresses in what is written by templates: Sphinx resolves none there."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlencode

from docutils import nodes
from markupsafe import Markup
from sphinx.application import Sphinx

from clauses.domain import NAME, SOURCE_PAGES

IMPLEMENTATIONS = "implementations"
"""The folder with a page for each implementation, each named after it."""


class Links:
    """The addresses of pages, as one page refers to them."""

    def __init__(self, app: Sphinx, docname: str) -> None:
        self._app = app
        self._docname = docname

    def page(self, docname: str, anchor: str = "", query: str = "") -> str:
        """Return the address of a page, with an anchor and a query."""
        uri = self._app.builder.get_relative_uri(self._docname, docname)
        return uri + (f"?{query}" if query else "") + (f"#{anchor}" if anchor else "")

    def clause(self, id: str, anchor: str = "") -> str:
        """Return the address of a clause, or of an anchor in it."""
        found = self._app.env.domaindata[NAME]["clause"][id]
        return self.page(found.docname, anchor or id)

    def to(self, id: str) -> Markup:
        """Return the link to a clause."""
        title = self._app.env.domaindata[NAME]["clause"][id].title
        link = '<a class="reference internal" href="{}" title="{}: {}">{}</a>'
        return Markup(link).format(self.clause(id), id, title, id)

    def to_all(self, ids: Iterable[str]) -> Markup:
        """Return the links to clauses."""
        return Markup(", ").join(map(self.to, ids))

    def source(self, file: str) -> str:
        """Return the address of the page that shows a file of the repository."""
        return self.page(f"{SOURCE_PAGES}/{file}")

    def implementation(self, name: str) -> str:
        """Return the address of the page of an implementation; empty without one."""
        docname = f"{IMPLEMENTATIONS}/{nodes.make_id(name)}"
        return self.page(docname) if docname in self._app.env.found_docs else ""

    def matrix(self, chapter: str = "", **filters: str) -> str:
        """Return the address of the matrix with a filter set."""
        given = {"chapter": chapter, **filters}
        query = urlencode({name: value for name, value in given.items() if value})
        anchor = f"matrix-{chapter}" if chapter else ""
        return self.page(self._app.config.clauses_matrix, anchor, query)
