"""The picture of what the suite is worth: faults that it was shown, seen and missed.

A row for each record that the page has, in the order of its sections, which the rows
lead to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clauses.rendering import rendered
from docutils import nodes
from elements import read_json
from sphinx.util.docutils import SphinxDirective

from .blind import killed, rounds
from .generated import KILLED as SEEN_IN_TIME

Record = Any


@dataclass(frozen=True)
class Row:
    """How many faults of one sort the suite was shown, and how many it has seen."""

    label: str
    section: str
    seen: int
    shown: int

    @property
    def missed(self) -> int:
        """How many it has not seen."""
        return self.shown - self.seen


def of_fates(label: str, section: str, faults: Sequence[Record]) -> list[Row]:
    """Return the row of faults that each have a fate."""
    seen = sum(one["fate"] == "killed" for one in faults)
    return [Row(label, section, seen, len(faults))]


def by_hand(mutants: Record) -> list[Row]:
    """Return the row of the mutants that are part of the suite."""
    return of_fates("Mutants by hand", "all-mutants", mutants)


def of_device_memory(record: Record) -> list[Row]:
    """Return the row of the faults of the protocol of device memory."""
    section = "every-interleaving-of-the-protocol-of-device-memory"
    return of_fates("Protocol of device memory", section, record["faults"])


def generated(record: Record) -> list[Row]:
    """Return the row of the generated mutants that make a difference."""
    outcomes = [one["outcome"] for one in record["mutants"]]
    real = [outcome for outcome in outcomes if outcome != "equivalent"]
    seen = sum(outcome in SEEN_IN_TIME for outcome in real)
    return [Row("Generated mutants, a sample", "generated-mutants", seen, len(real))]


def by_outsiders(trials: Record) -> list[Row]:
    """Return two rows for each round of faults: its first run, and today's."""
    return [
        Row(
            f"Faults by outsiders, round {number}, {when}",
            "a-blind-trial",
            len(killed(faults, run)),
            len(faults),
        )
        for number, faults in rounds(trials).items()
        for run, when in (("first_run", "first run"), ("now", "today"))
    ]


RECORDS: Mapping[str, Callable[[Record], list[Row]]] = {
    "mutants": by_hand,
    "device-exploration": of_device_memory,
    "generated-mutants": generated,
    "blind-trial": by_outsiders,
}
"""The files below ``docs/reports``, and what makes rows of each."""


class OverviewDirective(SphinxDirective):
    """``{trust-overview}``: a bar for each record of faults."""

    def run(self) -> list[nodes.Node]:
        """Render the records as they are; one that is missing has no row."""
        rows: list[Row] = []
        for name, rows_of in RECORDS.items():
            file = f"reports/{name}.json"
            record = read_json(self.env, file, "record of faults", rows_of)
            rows += rows_of(record) if record else []
        return [rendered("overview.html", rows=rows)]
