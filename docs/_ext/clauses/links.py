"""Makes the addresses in what is written by templates: Sphinx resolves none there."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlencode

from docutils import nodes
from markupsafe import Markup, escape
from sharedtensor_conformance.evidence import CLAUSE_ID
from sphinx.application import Sphinx
from sphinx.util.osutil import relative_uri

from clauses.domain import NAME

IMPLEMENTATIONS = "implementations"
"""The folder with a page for each implementation, each named after it."""

LINK = Markup('<a class="reference internal" href="{}" title="{}: {}">{}</a>')
DOWNLOAD = Markup(
    '<a class="reference download internal" download="" href="{}">'
    '<code class="download docutils literal">{}</code></a>'
)


class Links:
    """The addresses of pages, as one page refers to them.

    Raises:
        KeyError: asked for a clause or a promise that no page defines.
    """

    def __init__(self, app: Sphinx, docname: str) -> None:
        self._app = app
        self.docname = docname

    def page(self, docname: str, anchor: str = "", query: str = "") -> str:
        """Return the address of a page, with an anchor and a query."""
        uri = self._app.builder.get_relative_uri(self.docname, docname)
        return uri + (f"?{query}" if query else "") + (f"#{anchor}" if anchor else "")

    def clause(self, id: str, anchor: str = "") -> str:
        """Return the address of the page of a clause, or of an anchor on it."""
        return self.page(self._app.env.domains[NAME].clause_page(id), anchor)

    def to(self, id: str, kind: str = "clause") -> Markup:
        """Return the link to a clause or a promise."""
        title = self._app.env.domaindata[NAME][kind][id].title
        return LINK.format(self._address(kind, id), id, title, id)

    def known(self, id: str) -> Markup:
        """Return the link to a clause, or the id alone of one that there is no more."""
        is_there = id in self._app.env.domaindata[NAME]["clause"]
        return self.to(id) if is_there else escape(id)

    def to_all(self, ids: Iterable[str]) -> Markup:
        """Return the links to clauses."""
        return Markup(", ").join(map(self.to, ids))

    def cited(self, text: str) -> Markup:
        """Return a text with links to the clauses in it."""
        linked = CLAUSE_ID.sub(lambda found: self.to(found[0]), str(escape(text)))
        return Markup(linked)

    def source(self, file: str, line: int = 0) -> str:
        """Return the address of a file of the repository, or of a line of it."""
        anchor = f"L{line}" if line else ""
        return self.page(self._app.env.domains[NAME].source_page(file), anchor)

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

    def download(self, file: str, text: str) -> Markup:
        """Return the link to the copy of a file that the page has asked for."""
        copy = self._app.env.dlfiles.add_file(self.docname, file)
        here = self._app.builder.get_target_uri(self.docname)
        return DOWNLOAD.format(relative_uri(here, f"_downloads/{copy}"), text)

    def _address(self, kind: str, id: str) -> str:
        domain = self._app.env.domains[NAME]
        return domain.address(self._app.builder, self.docname, kind, id)
