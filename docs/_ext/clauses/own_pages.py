"""Writes the pages of clauses and of reports, which have lasting addresses.

A chapter shows what a clause says and what became of it. ``spec/GRAD-2.html`` has that
as well, and all that backs the clause. A report to a project is read alone, too, by
those who get a link to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import Any

from docutils import nodes
from markupsafe import Markup
from sharedtensor_conformance.clauses import Clause
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import new_document

from clauses.domain import NAME
from clauses.links import Links
from clauses.pages import Page, beside
from clauses.rendering import shown_on


def clause_pages(app: Sphinx) -> Iterator[Page]:
    """Yield the page of each clause; each leads to the ones before and after it."""
    domain = app.env.domains[NAME]
    clauses = domain.clauses()
    before = {clause: one for one, clause in pairwise(clauses)}
    after = dict(pairwise(clauses))
    of_chapter = groupby(clauses, lambda one: domain.data["clause"][one.id].docname)
    for chapter, members in of_chapter:
        sections = sections_of(app, chapter)
        toctree = beside(app, chapter)
        for clause in members:
            name, section = domain.clause_page(clause.id), sections[clause.id]
            around = {"before": before.get(clause), "after": after.get(clause)}
            links = Links(app, name)
            context = {
                "title": f"{clause.id}: {clause.title}",
                "description": description(section),
                "body": body(app, links, chapter, section, clause=clause, **around),
                "toctree": toctree,
                "prev": neighbour(links, around["before"]),
                "next": neighbour(links, around["after"]),
            }
            index(app, name, section, clause)
            yield name, context, "page.html"


def index(app: Sphinx, page: str, section: nodes.section, clause: Clause) -> None:
    """Let the search find the page of a clause, which its chapter leaves to this page.

    The page joins the documents, since Sphinx leaves all others out of its index. Its
    entries come before pages that merely have the same words.
    """
    title, content = section[0], new_document(page)
    content += section.children
    names = (clause.id, clause.title)
    entries = [("single", name, "", "main", None) for name in names]
    content += addnodes.index(entries=entries)
    app.env.all_docs[page], app.env.titles[page] = 0, title
    app.builder.index_page(page, content, title.astext())


def sections_of(app: Sphinx, chapter: str) -> dict[str, nodes.section]:
    """Return the clauses of a chapter, whose links are resolved, by their ids."""
    found = app.env.get_and_resolve_doctree(chapter, app.builder)
    sections = [s for s in found.findall(nodes.section) if "clause" in s["classes"]]
    return {section["ids"][0]: section for section in sections}


def neighbour(links: Links, clause: Clause | None) -> dict[str, str] | None:
    """Return the link to another clause as themes take it; None without one."""
    if clause is None:
        return None
    return {"title": f"{clause.id} {clause.title}", "link": links.clause(clause.id)}


def description(section: nodes.section) -> str:
    """Return the text of a clause alone, without its reasons."""
    texts = [one for one in section.children if "clause-text" in one["classes"]]
    return " ".join(texts[0].astext().split())


def body(
    app: Sphinx, links: Links, chapter: str, section: nodes.section, **given: Any
) -> str:
    """Return a clause as its chapter has it, with all that backs it."""
    for part in list(section.findall(nodes.raw)):  # its verdicts, which come again
        part.parent.remove(part)
    for link in section.findall(nodes.reference):
        page, _, anchor = link.get("refuri", f"#{link.get('refid', '')}").partition("#")
        if not page:
            is_clause = anchor in app.env.domaindata[NAME]["clause"]
            there = links.clause(anchor) if is_clause else links.page(chapter, anchor)
            link["refuri"] = there
    said = Markup(app.builder.render_partial(section)["fragment"])
    given |= {"chapter": chapter, "chapter_title": app.env.titles[chapter].astext()}
    return shown_on(app, links.docname, "clause-page", said=said, **given)


def report_pages(app: Sphinx) -> Iterator[Page]:
    """Yield the page of each report that a project can be sent."""
    for name, known in app.env.domains[NAME].backing.deviations.items():
        toctree = beside(app, f"upstream/{name}")
        for report in (one for one in known.reports if one.cause.promises):
            body = shown_on(app, report.page, "deviation", name=name, report=report)
            title = report.title.replace("`", "")
            said = {"title": title, "description": report.happens, "body": body}
            yield report.page, {**said, "toctree": toctree}, "page.html"


def setup(app: Sphinx) -> None:
    """Register the pages."""
    app.connect("html-collect-pages", clause_pages)
    app.connect("html-collect-pages", report_pages)
