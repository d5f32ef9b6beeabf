"""Shows of what a message and the start of a child consist, as it was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from endurance.tables import paragraph, table
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

Profile = dict[str, Any]


class ProfileDirective(SphinxDirective):
    """``{benchmark-profile} FILE``: what ``ci/profile_reference.py`` has written."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Render the file; one that is missing is said to be missing."""
        path = Path(self.env.srcdir, self.arguments[0])
        self.env.note_dependency(str(path))
        if not path.exists():
            text = "Nothing has been measured yet; no profile is committed."
            return [nodes.paragraph("", text, classes=["missing"])]
        found = read(path)
        how = f"Medians of {found['repeats']} times {found['messages']} messages."
        return [paragraph(how), steps(found["steps"]), starts(found["starts"])]


def read(path: Path) -> Profile:
    """Return the profile in a file.

    Raises:
        ExtensionError: it holds none.
    """
    try:
        found: Profile = json.loads(path.read_text(encoding="utf-8"))
        found["repeats"], found["messages"], found["steps"], found["starts"]
    except (ValueError, KeyError) as error:
        raise ExtensionError(f"{path} is no profile: {error}") from error
    return found


def steps(by_strategy: dict[str, dict[str, float]]) -> nodes.container:
    """Return the steps of a message by strategy, and their sums."""
    names = list(next(iter(by_strategy.values())))
    lines: list[list[object]] = [
        [name, *(f"{taken[name]:.0f} us" for taken in by_strategy.values())]
        for name in names
    ]
    lines.append(
        ["all of it", *(f"{sum(one.values()):.0f} us" for one in by_strategy.values())]
    )
    return table(["Step", *by_strategy], lines)


def starts(by_import: dict[str, float]) -> nodes.container:
    """Return how long a process takes by what it imports."""
    lines = [[what, f"{taken:.0f} ms"] for what, taken in by_import.items()]
    return table(["A process that imports", "From its start to its end"], lines)
