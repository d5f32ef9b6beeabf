"""How precise the suite is: what else turns red when one clause is broken.

``shared-tensor-spec mutants --run --json`` with ``--others=whole`` runs all cases on
each mutant, with ``--others=one-per-clause`` one of each clause, and names the clauses
that broke though the mutant does not name them.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, median
from typing import Any

from docutils import nodes
from soak.tables import paragraph, table
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective


class PrecisionDirective(SphinxDirective):
    """``{precision} FILE``: the figures of the record, and a row for each mutant."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Render the record as it is."""
        file = Path(self.env.srcdir, self.arguments[0])
        self.env.note_dependency(str(file))
        found = read(file)
        head = ["Mutant", "Its clauses", "Fate", "What broke beside them"]
        if not found:
            return [paragraph("No such run is committed yet.")]
        rows = [
            [
                one["name"],
                " ".join(one["clauses"]),
                one["fate"],
                " ".join(one["also"]) or "-",
            ]
            for one in found
        ]
        return [paragraph(figures(found)), table(head, rows)]


def read(file: Path) -> list[dict[str, Any]]:
    """Return the outcomes of the run.

    Raises:
        ExtensionError: the file holds something else.
    """
    if not file.exists():
        return []
    try:
        found: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
        for one in found:
            _ = one["name"], one["clauses"], one["fate"], one["also"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExtensionError(f"{file} is no record of precision: {error}") from error
    return found


def figures(found: list[dict[str, Any]]) -> str:
    """Return how many clauses broke beside those that the killed mutants name."""
    beside = [len(one["also"]) for one in found if one["fate"] == "killed"] or [0]
    return (
        f"Of {len(found)} mutants drawn by lot {len(beside)} were killed. "
        f"Beside its own clauses each of them broke {mean(beside):.1f} in "
        f"the mean, {median(beside):g} in the median, {max(beside)} at most."
    )
