"""Which known deviations a program shows that needs the implementation alone.

``ci/run_programs.py`` lets a failing case for each test and cause become a program and
executes it. The record says which show their failure, and why the others do not.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from elements import paragraph, read_json, table
from sphinx.util.docutils import SphinxDirective

HEAD = ["Case", "Clauses", "Verdict", "Lines", "Why no program shows it"]


class ProgramsDirective(SphinxDirective):
    """``{programs} FILE``: how many are shown, and a row for each case."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Render the record as it is."""
        file, what = self.arguments[0], "record of programs"
        found = read_json(self.env, file, what, shown)
        return shown(found) if found else [paragraph("No such run is committed yet.")]


def shown(found: dict[str, Any]) -> list[nodes.Node]:
    """Return the figures of a record and its rows, those that are shown first."""
    rows = sorted(found["programs"], key=lambda row: not row["shown"])
    count = sum(row["shown"] for row in rows)
    said = (
        f"{found['implementation']} {found['version']}: of {len(rows)} deviations, one "
        f"for each test and cause, {count} are shown by a program."
    )
    cells = [
        [
            nodes.literal("", row["case"]),
            ", ".join(row["clauses"]),
            row["verdict"],
            row["lines"] or "",
            row["said"],
        ]
        for row in rows
    ]
    return [paragraph(said), table(HEAD, cells)]
