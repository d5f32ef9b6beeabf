"""How precise the suite is: what else turns red when one clause is broken.

``shared-tensor-spec mutants --run --json`` with ``--others=whole`` runs all cases on
each mutant, with ``--others=one-per-clause`` one of each clause, and names the clauses
that broke though the mutant does not name them.
"""

from __future__ import annotations

from statistics import mean, median
from typing import Any

from docutils import nodes
from elements import paragraph, read_json, table
from sphinx.util.docutils import SphinxDirective

HEAD = ["Mutant", "Its clauses", "Fate", "Other clauses that broke"]


class PrecisionDirective(SphinxDirective):
    """``{precision} FILE``: the figures of the record, and a row for each mutant."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Render the record as it is."""
        file, what = self.arguments[0], "record of precision"
        found = read_json(self.env, file, what, shown)
        return shown(found) if found else [paragraph("No such run is committed yet.")]


def shown(found: list[dict[str, Any]]) -> list[nodes.Node]:
    """Return the figures, and a row for each mutant."""
    rows = [
        [
            one["name"],
            " ".join(one["clauses"]),
            one["fate"],
            " ".join(one["also"]) or "-",
        ]
        for one in found
    ]
    return [paragraph(figures(found)), table(HEAD, rows)]


def figures(found: list[dict[str, Any]]) -> str:
    """Return how many clauses broke that the killed mutants do not name."""
    others = [len(one["also"]) for one in found if one["fate"] == "killed"] or [0]
    return (
        f"Of {len(found)} mutants drawn at random, {len(others)} were killed. "
        f"Each of them broke {mean(others):.1f} other clauses on average "
        f"(median {median(others):g}, maximum {max(others)})."
    )
