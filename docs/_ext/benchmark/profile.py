"""Shows of what a message, a child's start and a run of the suite consist."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from docutils import nodes
from soak.tables import paragraph, table
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

Profile = dict[str, Any]


class ProfileDirective(SphinxDirective):
    """``{benchmark-profile} FILE``: what ``ci/profile_reference.py`` has written."""

    required_arguments = 1
    needed = ("repeats", "messages", "steps", "starts")

    def run(self) -> list[nodes.Node]:
        """Render the file; one that is missing is said to be missing."""
        path = Path(self.env.srcdir, self.arguments[0])
        self.env.note_dependency(str(path))
        if not path.exists():
            text = "Nothing has been measured yet; no profile is committed."
            return [nodes.paragraph("", text, classes=["missing"])]
        return self.rendered(read(path, self.needed))

    def rendered(self, found: Profile) -> list[nodes.Node]:
        """Return the steps of a message, and what a child's start consists of."""
        how = f"Medians of {found['repeats']} times {found['messages']} messages."
        return [paragraph(how), steps(found["steps"]), starts(found["starts"])]


class SuiteProfileDirective(ProfileDirective):
    """``{suite-profile} FILE``: what ``ci/profile_suite.py`` has written."""

    needed = ("cases", "wall", "cores", "python", "options", "kinds")

    def rendered(self, found: Profile) -> list[nodes.Node]:
        """Return how many processes of each kind a run had, and what they used."""
        kinds = found["kinds"]
        used = sum(kind["seconds"] for kind in kinds)
        share = used / (found["cores"] * found["wall"])
        how = (
            f"{found['cases']} cases with {' '.join(found['options'])} under Python "
            f"{found['python']}: {found['wall']:.0f} s on {found['cores']} cores, "
            f"and {used:.0f} s of processor time, {share:.0%} of what there was."
        )
        lines: list[list[object]] = [
            [
                kind["kind"],
                str(kind["processes"]),
                f"{kind['seconds']:.1f} s",
                f"{kind['median_ms']} ms",
            ]
            for kind in kinds
        ]
        return [paragraph(how), table(["Kind", "Processes", "Used", "Median"], lines)]


def read(path: Path, needed: Sequence[str]) -> Profile:
    """Return the profile in a file, which has the fields that are `needed`.

    Raises:
        ExtensionError: it has not.
    """
    try:
        found: Profile = json.loads(path.read_text(encoding="utf-8"))
        for field in needed:
            found[field]
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
