"""The elements that the pages are made of, for all extensions of the site."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx


class element(nodes.General, nodes.TextElement):
    """An element of HTML that docutils has no node for, such as a cell with a scope."""


def tag(name: str, *content: nodes.Node, classes: Iterable[str] = (), **attributes):
    """Return an element of HTML; underscores in the names of attributes are hyphens."""
    given = {key.replace("_", "-"): value for key, value in attributes.items()}
    return element("", "", *content, tag=name, given=given, classes=[*classes])


def folded(line: Iterable[nodes.Node], *content: nodes.Node, ids: Iterable[str] = ()):
    """Return `content`, folded under a line of text."""
    box = tag("details", tag("summary", *line), *content)
    box["ids"] += ids
    return box


def folded_table(line: str, shown: nodes.Node) -> nodes.Element:
    """Return a long table, folded under a line that says what it has."""
    box = folded([nodes.Text(line)], shown)
    box["classes"].append("folded")
    return box


def paragraph(text: str, classes: Iterable[str] = ()) -> nodes.paragraph:
    """Return a paragraph."""
    return nodes.paragraph("", text, classes=[*classes])


def missing(text: str) -> nodes.paragraph:
    """Return a sentence about something that is not there."""
    return paragraph(text, ["missing"])


def badge(text: str, *classes: str) -> nodes.inline:
    """Return a short labelled word."""
    return nodes.inline("", text, classes=["badge", *classes])


def download(file: str, text: str) -> nodes.Node:
    """Return a link to a file below ``docs``, which is published beside the pages."""
    shown = nodes.literal("", text, classes=["download"])
    return addnodes.download_reference("", "", shown, reftarget=f"/{file}")


def with_code(text: str) -> nodes.Node:
    """Return a sentence in which what stands between backticks is code."""
    parts = text.split("`")
    kinds = [nodes.literal if n % 2 else nodes.inline for n in range(len(parts))]
    made = [kind("", part) for kind, part in zip(kinds, parts, strict=True)]
    return nodes.inline("", "", *made)


def between(items: Iterable[nodes.Node], separator: str) -> list[nodes.Node]:
    """Return `items` with text between them."""
    parts = [part for item in items for part in (nodes.Text(separator), item)]
    return parts[1:]


def definitions(
    meanings: Iterable[tuple[nodes.Node, nodes.Node]], name: str
) -> nodes.definition_list:
    """Return a list of terms with what belongs to each."""
    entries = nodes.definition_list(classes=[name])
    for term, content in meanings:
        shown = nodes.term("", "", term), nodes.definition("", content)
        entries += nodes.definition_list_item("", *shown)
    return entries


def table(
    head: Iterable[object], rows: Iterable[Iterable[object]], name: str = ""
) -> nodes.Element:
    """Return a table in a box that scrolls, by keys too, where the page is too narrow.

    A cell is a node, or anything else, which is shown as text. A column of numbers is
    set flush right, with its head.
    """
    titles = list(head)
    lines = [list(row) for row in rows]
    numbers = [are_numbers(column) for column in zip_longest(*lines, fillvalue="")]
    group = nodes.tgroup(cols=len(titles))
    group += [nodes.colspec(colwidth=1) for _ in titles]
    group += nodes.thead("", _row(titles, numbers))
    group += nodes.tbody("", *(_row(line, numbers) for line in lines))
    made = nodes.table("", group, classes=[name] if name else [])
    return tag("div", made, classes=["wide"], tabindex="0")


FIGURE = re.compile(r"[\d,]+(\.\d+)?( ?(us|ms|s|%))?")
NOTHING = ("", "-")


def are_numbers(column: Iterable[object]) -> bool:
    """Return whether the cells of a column show numbers, or nothing in their place."""
    shown = {str(cell) for cell in column if cell not in NOTHING}
    return bool(shown) and all(map(FIGURE.fullmatch, shown))


def _row(cells: Iterable[object], numbers: Sequence[bool]) -> nodes.row:
    row = nodes.row()
    for cell, number in zip_longest(cells, numbers, fillvalue=False):
        shown = cell if isinstance(cell, nodes.Node) else nodes.Text(str(cell))
        classes = ["number"] if number else []
        row += nodes.entry("", nodes.paragraph("", "", shown), classes=classes)
    return row


def _open(self: Any, node: element) -> None:
    self.body.append(self.starttag(node, node["tag"], "", **node["given"]))


def _close(self: Any, node: element) -> None:
    self.body.append(f"</{node['tag']}>")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the node for what docutils has none for."""
    app.add_node(element, html=(_open, _close))
    return {"version": "1", "parallel_read_safe": True}
