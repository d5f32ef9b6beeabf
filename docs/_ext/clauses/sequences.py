"""Reads who sends what to whom from a Mermaid diagram; a template draws it.

GitHub draws the text of such a diagram by a script. The site has the drawing in the
page, so it needs no script and has the colours of the page.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from clauses.rendering import place

ARROW = re.compile(r"(\w+)-(-?)>>(\w+): (.+)")
BLOCK = re.compile(r"(opt|alt|else|end) ?(.*)")


class Step(NamedTuple):
    """An arrow between two columns; or what begins, divides or ends a block."""

    text: str
    source: str = ""
    target: str = ""
    dashed: bool = False
    block: str = ""


class MermaidDirective(SphinxDirective):
    """A block of Mermaid in which a ``sequenceDiagram`` is drawn."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        columns: dict[str, str] = {}
        steps = []
        for line in filter(None, map(str.strip, self.content[1:])):
            if line.startswith("participant "):
                id, _, name = line.removeprefix("participant ").partition(" as ")
                columns[id] = name or id
            elif found := BLOCK.fullmatch(line):
                steps.append(Step(found[2], block=found[1]))
            elif found := ARROW.fullmatch(line):
                ends = [columns.setdefault(id, id) for id in found.group(1, 3)]
                steps.append(Step(found[4], *ends, dashed=bool(found[2])))
            else:
                raise self.error(f"the site cannot draw this line of Mermaid: {line}")
        return [place("sequence", columns=[*columns.values()], steps=steps)]


def setup(app: Sphinx) -> None:
    """Register the directive."""
    app.add_directive("mermaid", MermaidDirective)
