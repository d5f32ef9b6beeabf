"""Keeps what the pages define, and resolves references to it.

Clauses and promises are objects of a Sphinx domain, so they are found by the search,
written to the inventory, and a reference to one that does not exist is a warning.
Files of the repository are the third kind of target: they lead to a source page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

from docutils import nodes
from sharedtensor_conformance.clauses import Clause
from sharedtensor_conformance.evidence import problems
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.builders import Builder
from sphinx.domains import Domain, ObjType
from sphinx.environment import BuildEnvironment
from sphinx.roles import XRefRole
from sphinx.util import logging

from clauses.backing import Backing
from clauses.shown_files import is_shown

NAME = "spec"
SOURCE_PAGES = "source"
ONE_PAGE = "one-page"
"""The key under which the metadata of a page have the pages that are put into it."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Definition:
    """Where an object was defined, and what it says.

    Args:
        reason: why no clause answers a promise.
    """

    docname: str
    title: str
    content: Any
    reason: str = ""


@dataclass(frozen=True)
class Chapter:
    """The clauses of a chapter in their order, and the title of its page."""

    name: str
    title: str
    clauses: Sequence[Clause]

    @property
    def about(self) -> str:
        """What the title says beside the name."""
        return self.title.partition(": ")[2]


class SpecRole(XRefRole):
    """A reference into the domain that may be written without its name."""

    def process_link(self, env, refnode, has_explicit_title, title, target):
        """Name the domain."""
        refnode["refdomain"] = NAME
        refnode["reftype"] = self.name.rpartition(":")[2]
        return title, target


class SpecDomain(Domain):
    """Clauses, promises and source files.

    Attributes:
        backing: what backs the clauses.
        linked: the files of the repository that the pages of this build link to.
    """

    backing: Backing

    name = NAME
    label = "Specification"
    object_types: ClassVar = {
        "clause": ObjType("clause", "clause"),
        "promise": ObjType("promise", "promise"),
    }
    roles: ClassVar = {
        "clause": SpecRole(innernodeclass=nodes.inline),
        "promise": SpecRole(innernodeclass=nodes.inline),
        "source": SpecRole(),
    }
    initial_data: ClassVar = {"clause": {}, "promise": {}}

    def __init__(self, env: BuildEnvironment) -> None:
        super().__init__(env)
        self.linked: set[str] = set()

    def clauses(self) -> list[Clause]:
        """Return all clauses, in the order of the configured chapters."""
        names = list(self.env.config.clauses_chapters)
        found = [definition.content for definition in self.data["clause"].values()]
        names += sorted({clause.chapter for clause in found} - set(names))
        return sorted(found, key=lambda one: (names.index(one.chapter), one.order))

    def chapters(self) -> list[Chapter]:
        """Return the chapters in their order, each with its clauses."""
        pages = {
            one.content.chapter: one.docname for one in self.data["clause"].values()
        }
        by_chapter = groupby(self.clauses(), key=lambda clause: clause.chapter)
        return [
            Chapter(name, self.env.titles[pages[name]].astext(), list(members))
            for name, members in by_chapter
        ]

    def source_page(self, file: str) -> str:
        """Return the name of the page of a file, which is written since it is asked."""
        self.linked.add(file)
        return f"{SOURCE_PAGES}/{file}"

    def clause_page(self, id: str) -> str:
        """Return the name of the page of a clause, which is beside its chapter's.

        Raises:
            KeyError: no page defines it.
        """
        folder, slash, _ = self.data["clause"][id].docname.rpartition("/")
        return f"{folder}{slash}{id}"

    def define(self, kind: str, id: str, definition: Definition, location: Any) -> None:
        """Note an object; a second one of the same id is a warning."""
        known = self.data[kind].get(id)
        if known:
            logger.warning(
                "the %s %s is defined twice: here and in %s; ids are never reused",
                kind,
                id,
                known.docname,
                location=location,
            )
        self.data[kind][id] = definition

    def clear_doc(self, docname: str) -> None:
        """Forget what `docname` defined."""
        for kind in self.object_types:
            for id, definition in list(self.data[kind].items()):
                if definition.docname == docname:
                    del self.data[kind][id]

    def merge_domaindata(self, docnames: Iterable[str], otherdata: dict) -> None:
        """Take over what another process read."""
        for kind in self.object_types:
            for id, definition in otherdata[kind].items():
                if definition.docname in docnames:
                    self.define(kind, id, definition, definition.docname)

    def address(self, builder: Builder, page: str, kind: str, id: str) -> str:
        """Return the address of a clause or a promise, which may be on the same page.

        A clause elsewhere is shown by its own page.

        Raises:
            KeyError: no page defines it.
        """
        found = self.data[kind][id].docname
        if found in (page, *self.env.metadata.get(page, {}).get(ONE_PAGE, ())):
            return f"#{id}"
        if kind == "clause":
            return builder.get_relative_uri(page, self.clause_page(id))
        return f"{builder.get_relative_uri(page, found)}#{id}"

    def resolve_xref(self, env, fromdocname, builder, typ, target, node, contnode):
        """Return the link for a reference, or None where there is no such target."""
        if typ == "source":
            return self._source(fromdocname, builder, target, contnode)
        if target not in self.data[typ]:
            return None
        address = self.address(builder, fromdocname, typ, target)
        link = nodes.reference("", "", contnode, refuri=address, internal=True)
        link["reftitle"] = f"{target}: {self.data[typ][target].title}"
        return link

    def _source(
        self, fromdocname: str, builder: Builder, target: str, contnode: nodes.Node
    ) -> nodes.Node | None:
        """Return the link to a line of a file, such as ``spec/grad.md#L12``."""
        file, _, line = target.partition("#")
        if not is_shown(self.backing.root, file):
            return None
        if builder.format != "html":
            return contnode
        uri = builder.get_relative_uri(fromdocname, self.source_page(file))
        uri += f"#{line}" if line else ""
        return nodes.reference("", "", contnode, refuri=uri, internal=True)

    def resolve_any_xref(self, env, fromdocname, builder, target, node, contnode):
        """Leave the role ``any`` to the other domains."""
        return []

    def get_objects(self) -> Iterator[tuple[str, str, str, str, str, int]]:
        """Yield what the search and the inventory list, important ones.

        Where an anchor is the same as the name, the search puts what it displays into
        the address; so the anchor is written in another way that means the same. What
        it displays is escaped twice, so there is nothing in it to be escaped.
        """
        for kind in self.object_types:
            for id, found in self.data[kind].items():
                shown = f"{id} {found.title}".replace(
                    "'", "\N{RIGHT SINGLE QUOTATION MARK}"
                ).replace("`", "")
                anchor = f"%{ord(id[0]):02X}{id[1:]}"
                page = self.clause_page(id) if kind == "clause" else found.docname
                yield id, shown, kind, page, anchor, 0


def reference(kind: str, target: str, text: str, docname: str):
    """Return a reference that is resolved when all pages have been read."""
    return addnodes.pending_xref(
        "",
        nodes.inline("", text),
        refdomain=NAME,
        reftype=kind,
        reftarget=target,
        refdoc=docname,
        refexplicit=True,
        refwarn=True,
    )


def link_clauses(
    app: Sphinx, what: str, name: str, item: Any, options: Any, lines: list[str]
) -> None:
    """Turn the clauses that a documented docstring cites into references."""
    chapters = "|".join(app.config.clauses_chapters)
    if chapters:
        ids = re.compile(rf"(?<!`)\b((?:{chapters})-\d+)\b(?!`)")
        lines[:] = [ids.sub(r":clause:`\1`", line) for line in lines]


def verify_evidence(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of a clause without evidence, and of a citation that leads nowhere."""
    clauses, backing = env.domains[NAME].clauses(), env.domains[NAME].backing
    for problem in problems(clauses, backing.evidence):
        place = f"{backing.root / problem.file}:{problem.line}"
        kind = {"type": "clauses", "subtype": problem.kind}
        logger.warning("%s", problem.sentence, location=place, **kind)


def verify_promises(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of a promise with neither a clause nor a reason, or with both."""
    answered = {id for one in env.domains[NAME].clauses() for id in one.promises}
    for id, promise in env.domaindata[NAME]["promise"].items():
        if (id in answered) == bool(promise.reason):
            logger.warning(
                "the promise %s needs either a clause or :informative: with a reason",
                id,
                location=promise.docname,
            )


def setup(app: Sphinx) -> None:
    """Register the domain, and its roles under their short names."""
    app.add_domain(SpecDomain)
    for kind, role in SpecDomain.roles.items():
        app.add_role(kind, role)
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", link_clauses)
    app.connect("env-check-consistency", verify_evidence)
    app.connect("env-check-consistency", verify_promises)
