"""Keeps what the pages define, and resolves references to it.

Clauses and promises are objects of a Sphinx domain, so they are found by the search,
written to the inventory, and a reference to one that does not exist is a warning.
Files of the repository are the third kind of target: they lead to a source page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from docutils import nodes
from sharedtensor_conformance.evidence import problems
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.builders import Builder
from sphinx.domains import Domain, ObjType
from sphinx.environment import BuildEnvironment
from sphinx.roles import XRefRole
from sphinx.util import logging
from sphinx.util.nodes import make_refnode

from clauses.shown_files import is_shown

NAME = "spec"
SOURCE_PAGES = "source"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Definition:
    """Where an object was defined, and what it says."""

    docname: str
    title: str
    content: Any


class SpecRole(XRefRole):
    """A reference into the domain that may be written without its name."""

    def process_link(self, env, refnode, has_explicit_title, title, target):
        """Name the domain, and note the files that need a source page."""
        refnode["refdomain"] = NAME
        refnode["reftype"] = self.name.rpartition(":")[2]
        if refnode["reftype"] == "source":
            env.domaindata[NAME]["sources"].setdefault(env.docname, set()).add(target)
        return title, target


class SpecDomain(Domain):
    """Clauses, promises and source files."""

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
    initial_data: ClassVar = {"clause": {}, "promise": {}, "sources": {}}

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
        self.data["sources"].pop(docname, None)
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
        for docname in docnames:
            if files := otherdata["sources"].get(docname):
                self.data["sources"][docname] = files

    def resolve_xref(self, env, fromdocname, builder, typ, target, node, contnode):
        """Return the link for a reference, or None where there is no such target."""
        if typ == "source":
            link = source_reference(env, fromdocname, builder, target, contnode)
            if "hint" in node and isinstance(link, nodes.reference):
                link["reftitle"] = node["hint"]
            return link
        definition = self.data[typ].get(target)
        if definition is None:
            return None
        return make_refnode(
            builder,
            fromdocname,
            definition.docname,
            node.get("anchor", target),
            contnode,
            f"{target}: {definition.title}",
        )

    def resolve_any_xref(self, env, fromdocname, builder, target, node, contnode):
        """Leave the role ``any`` to the other domains."""
        return []

    def get_objects(self) -> Iterator[tuple[str, str, str, str, str, int]]:
        """Yield what the search and the inventory list, important ones.

        Where an anchor is the same as the name, the search puts what it displays into
        the address; so the anchor is written in another way that means the same.
        """
        for kind in self.object_types:
            for id, found in self.data[kind].items():
                shown, anchor = f"{id} {found.title}", id.replace("-", "%2D")
                yield id, shown, kind, found.docname, anchor, 0


def source_reference(
    env: BuildEnvironment,
    fromdocname: str,
    builder: Builder,
    target: str,
    contnode: nodes.Node,
) -> nodes.Node | None:
    """Return the link to a line of a file, such as ``spec/grad.md#L12``."""
    file, _, line = target.partition("#")
    if not is_shown(env.clauses_root, file):
        return None
    if builder.format != "html":
        return contnode
    uri = builder.get_relative_uri(fromdocname, f"{SOURCE_PAGES}/{file}")
    uri += f"#{line}" if line else ""
    return nodes.reference("", "", contnode, refuri=uri, internal=True)


def reference(kind: str, target: str, text: str, docname: str, **more: Any):
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
        **more,
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
    defined = env.domaindata[NAME]["clause"].values()
    clauses = [definition.content for definition in defined]
    for problem in problems(clauses, env.clauses_evidence):
        place = f"{env.clauses_root / problem.file}:{problem.line}"
        kind = {"type": "clauses", "subtype": problem.kind}
        logger.warning("%s", problem.sentence, location=place, **kind)


def setup(app: Sphinx) -> None:
    """Register the domain, and its roles under their short names."""
    app.add_domain(SpecDomain)
    for kind, role in SpecDomain.roles.items():
        app.add_role(kind, role)
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", link_clauses)
    app.connect("env-check-consistency", verify_evidence)
