"""What came of the faults that were written by somebody who had not read the tests.

``trials/run.py`` leaves a record. A first run is what a round was about: what is found
today was found with the tests that the survivors led to.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from elements import folded_table, paragraph, read_json, table
from sphinx.util.docutils import SphinxDirective

HEAD = ["Fault in", "Clauses", "What is wrong with it", "First run", "Today"]


class BlindTrialDirective(SphinxDirective):
    """``{blind-trial}``: of each round the figures, and a row for each fault."""

    def run(self) -> list[nodes.Node]:
        """Render the record as it is."""
        file, what = "reports/blind-trial.json", "record of the trial"
        trials = read_json(self.env, file, what, rounds) or []
        return [
            node
            for number, faults in rounds(trials).items()
            for node in (paragraph(figures(number, faults)), table_of(faults))
        ]


def rounds(trials: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """Return the faults of each round, by its number."""
    found: dict[int, list[dict[str, Any]]] = {}
    for one in sorted(trials, key=lambda one: one["round"]):
        row(one)  # looks up what is shown of it
        found.setdefault(one["round"], []).append(one)
    return found


def table_of(trials: list[dict[str, Any]]) -> nodes.Element:
    """Return a row for each fault."""
    shown = table(HEAD, [row(one) for one in trials])
    return folded_table(f"The {len(trials)} faults", shown)


def figures(number: int, trials: list[dict[str, Any]]) -> str:
    """Return what the first run killed and did not try, and what is killed today."""
    first = killed(trials, "first_run")
    own = [one for one in first if one["first_run"]["own_clause"]]
    alive = [one["first_run"] for one in trials if one not in first]
    partly = [run for run in alive if run["stage"] == "clauses"]
    return (
        f"Round {number}: the first run killed {len(first)} of {len(trials)} faults, "
        f"{len(own)} of them by a test of a clause that the patch names. "
        f"{len(alive)} survived it. For {len(partly)} of these the first run took only "
        "the clauses that the patch names, so a test of another clause might have "
        f"killed them. {len(killed(trials, 'now'))} are killed today."
    )


def killed(trials: list[dict[str, Any]], run: str) -> list[dict[str, Any]]:
    """Return the trials that the run killed."""
    return [one for one in trials if one[run]["fate"] == "killed"]


def row(one: dict[str, Any]) -> list[Any]:
    """Return the row of one fault."""
    by = one["now"]["by"].partition("[")[0]
    return [
        f"{one['implementation']}: {one['name']}",
        " ".join(one["clauses"]),
        one["sentence"],
        one["first_run"]["fate"],
        by or one["now"]["fate"],
    ]
