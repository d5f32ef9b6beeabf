"""What exploring the manager's protocol in virtual time has come to.

``tests/manager/simulator/explore.py`` leaves a record: random runs, searches of all
interleavings of small programs, and mutants of the protocol.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from elements import folded_table, paragraph, read_json, table
from sphinx.util.docutils import SphinxDirective

from .age import age

INVARIANTS = ["Invariant", "What has to hold at each step", "Mutants killed by it"]
SEARCHES = ["Program", "Kills of managers, of clients", "States", "Deepest", "Violated"]
MUTANTS = ["Mutant", "What is wrong with it", "Violated", "Steps", "Seconds"]


class ManagerSimulationDirective(SphinxDirective):
    """``{manager-simulation}``: the figures of the record, and its tables."""

    def run(self) -> list[nodes.Node]:
        """Render the record as it is."""
        file, what = "reports/manager-simulation.json", "record of the simulation"
        record = read_json(self.env, file, what, shown)
        return shown(record) if record else [paragraph("No exploration was run yet.")]


def shown(record: dict[str, Any]) -> list[nodes.Node]:
    """Return the figures, the invariants, the searches and the mutants."""
    mutants = record["mutants"]
    invariants = [
        [name, text, sum(one["invariant"] == name for one in mutants)]
        for name, text in record["invariants"].items()
    ]
    return [
        paragraph(figures(record)),
        age(record),
        table(INVARIANTS, invariants),
        folded_table(
            f"The {len(record['searches'])} searches",
            table(SEARCHES, map(search_row, record["searches"])),
        ),
        folded_table(
            f"The {len(mutants)} mutants of the protocol",
            table(MUTANTS, map(mutant_row, mutants)),
        ),
    ]


def figures(record: dict[str, Any]) -> str:
    """Return how much was explored, and what was found."""
    runs, mutants = record["runs"], record["mutants"]
    killed = [one for one in mutants if one["fate"] == "killed"]
    complete = [one for one in record["searches"] if one["is_complete"]]
    return (
        f"{runs['runs']:,} random runs, from seed {runs['first_seed']} on, took "
        f"{runs['steps']:,} steps, {runs['steps_per_minute']:,} a minute. "
        f"{len(runs['violations'])} runs violated an invariant. "
        f"Of {len(record['searches'])} searches {len(complete)} have seen every state. "
        f"{len(killed)} of {len(mutants)} mutants of the protocol were killed."
    )


def search_row(found: dict[str, Any]) -> list[Any]:
    """Return the row of a search."""
    kills = f"{found['manager_kills']}, {found['client_kills']}"
    states = f"{found['states']:,}" + " seen" * (not found["is_complete"])
    violated = found["violation"] or "-"
    return [found["sentence"], kills, states, found["deepest"], violated]


def mutant_row(one: dict[str, Any]) -> list[Any]:
    """Return the row of a mutant."""
    violated = one["invariant"] or one["fate"]
    return [one["name"], one["sentence"], violated, one["steps"], one["seconds"]]
