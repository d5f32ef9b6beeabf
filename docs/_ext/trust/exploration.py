"""What searching the interleavings of the protocol of device memory has come to.

``tests/cuda/explorer/explore_device.py`` leaves a record: searches of small programs,
and faults of the protocol that they have found.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from elements import folded_table, paragraph, read_json, table
from sphinx.util.docutils import SphinxDirective

from .age import age

INVARIANTS = ["Invariant", "What has to hold at each step", "Faults found by it"]
SEARCHES = ["Program", "Kills", "States", "Schedules", "Deepest", "Violated"]
FAULTS = ["Fault", "What is wrong with it", "Violated", "States looked at"]


class DeviceExplorationDirective(SphinxDirective):
    """``{device-exploration}``: the figures of the record, and its tables."""

    def run(self) -> list[nodes.Node]:
        """Render the record as it is."""
        file, what = "reports/device-exploration.json", "record of the exploration"
        record = read_json(self.env, file, what, shown)
        return shown(record) if record else [paragraph("No exploration was run yet.")]


def shown(record: dict[str, Any]) -> list[nodes.Node]:
    """Return the figures, the invariants, the searches and the faults."""
    faults = record["faults"]
    invariants = [
        [name, text, sum(one["invariant"] == name for one in faults)]
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
            f"The {len(faults)} faults", table(FAULTS, map(fault_row, faults))
        ),
    ]


def figures(record: dict[str, Any]) -> str:
    """Return how much was explored, and what was found."""
    searches, faults = record["searches"], record["faults"]
    complete = sum(one["is_complete"] for one in searches)
    violated = sum(bool(one["violation"]) for one in searches)
    killed = sum(one["fate"] == "killed" for one in faults)
    return (
        f"{len(searches)} searches have looked at "
        f"{sum(one['states'] for one in searches):,} states by "
        f"{sum(one['schedules'] for one in searches):,} schedules of up to "
        f"{max(one['deepest'] for one in searches)} steps. "
        f"{complete} of them have seen every state, and {violated} found a "
        f"violation. {killed} of {len(faults)} faults were found."
    )


def search_row(found: dict[str, Any]) -> list[Any]:
    """Return the row of a search."""
    states = f"{found['states']:,}" + " seen" * (not found["is_complete"])
    schedules, violated = f"{found['schedules']:,}", found["violation"] or "-"
    deepest = found["deepest"]
    return [found["sentence"], found["kills"], states, schedules, deepest, violated]


def fault_row(one: dict[str, Any]) -> list[Any]:
    """Return the row of a fault."""
    violated = one["invariant"] or one["fate"]
    return [one["name"], one["sentence"], violated, f"{one['states']:,}"]
