"""Links the terms in the text of a clause to their definitions.

What is linked is what the hash of the clause covers: `terms.Terms` finds both.
"""

from __future__ import annotations

from docutils import nodes
from sharedtensor_conformance.terms import Term, Terms
from sphinx import addnodes

LEFT_ALONE = (nodes.literal, nodes.reference, addnodes.pending_xref)
"""What may have words in it that are no use of a term."""


def link_terms(text: nodes.Element, terms: Terms, docname: str) -> None:
    """Link each term in a text where it is used first."""
    linked: set[str] = set()
    for node in list(text.findall(nodes.Text)):
        if not any(isinstance(above, LEFT_ALONE) for above in _above(node, text)):
            parts = _with_links(node.astext(), terms, docname, linked)
            node.parent.replace(node, parts)


def _above(node: nodes.Node, top: nodes.Element) -> list[nodes.Node]:
    found = []
    while node is not top:
        node = node.parent
        found.append(node)
    return found


def _with_links(
    text: str, terms: Terms, docname: str, linked: set[str]
) -> list[nodes.Node]:
    """Return a text with links at the first uses of terms."""
    parts: list[nodes.Node] = []
    end = 0
    for use in terms.uses(text):
        if use.term.name not in linked:
            linked.add(use.term.name)
            link = _link(use.term, text[use.start : use.end], docname)
            parts += [nodes.Text(text[end : use.start]), link]
            end = use.end
    return [*parts, nodes.Text(text[end:])]


def _link(term: Term, shown: str, docname: str) -> addnodes.pending_xref:
    return addnodes.pending_xref(
        "",
        nodes.inline("", shown, classes=["term-use"]),
        refdomain="std",
        reftype="term",
        reftarget=term.name,
        refdoc=docname,
        refexplicit=True,
        refwarn=True,
    )
