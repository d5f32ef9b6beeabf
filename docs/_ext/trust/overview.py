"""The picture of what the suite is worth: faults that it was shown, seen and missed.

A row for each record that the page has, in the order of its sections, which the rows
lead to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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


def by_hand(mutants: Record) -> Iterator[Row]:
    """Yield the row of the mutants that are part of the suite."""
    seen = sum(one["fate"] == "killed" for one in mutants)
    yield Row("Mutants by hand", "all-mutants", seen, len(mutants))


def generated(record: Record) -> Iterator[Row]:
    """Yield the row of the generated mutants that make a difference."""
    outcomes = [one["outcome"] for one in record["mutants"]]
    real = [outcome for outcome in outcomes if outcome != "equivalent"]
    seen = sum(outcome in SEEN_IN_TIME for outcome in real)
    yield Row("Generated mutants, a sample", "generated-mutants", seen, len(real))


def by_outsiders(trials: Record) -> Iterator[Row]:
    """Yield two rows for each round of faults: its first run, and today's."""
    for number, faults in rounds(trials).items():
        name = f"Faults by outsiders, round {number}"
        for run, when in (("first_run", "first run"), ("now", "today")):
            seen = len(killed(faults, run))
            yield Row(f"{name}, {when}", "a-blind-trial", seen, len(faults))


def of_the_manager(record: Record) -> Iterator[Row]:
    """Yield the row of the mutants of the manager's protocol."""
    section = "the-managers-protocol-in-virtual-time"
    seen = sum(one["fate"] == "killed" for one in record["mutants"])
    yield Row("Manager's protocol", section, seen, len(record["mutants"]))


def of_device_memory(record: Record) -> Iterator[Row]:
    """Yield the row of the faults of the protocol of device memory."""
    section = "every-interleaving-of-the-protocol-of-device-memory"
    seen = sum(one["fate"] == "killed" for one in record["faults"])
    yield Row("Protocol of device memory", section, seen, len(record["faults"]))


RECORDS: Mapping[str, Callable[[Record], Iterator[Row]]] = {
    "mutants": by_hand,
    "manager-simulation": of_the_manager,
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

            def read(record: Record, rows_of: Any = rows_of) -> list[Row]:
                return list(rows_of(record))

            file = f"reports/{name}.json"
            record = read_json(self.env, file, "record of faults", read)
            rows += read(record) if record else []
        return [rendered("overview.html", rows=rows)]
