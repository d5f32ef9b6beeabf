"""Reads the committed records of soak runs."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from elements import read_json
from sphinx.environment import BuildEnvironment

Record = dict[str, Any]

EXPECTED = {
    "rounds": ("rounds-file_descriptor", "rounds-file_system"),
    "kills": ("kills",),
    "killed-runs": ("killed-runs",),
    "histories": ("histories",),
    "hostile": ("hostile",),
    "mixed": ("mixed",),
    "loaded": ("loaded", "loaded-nobody"),
    "shuffled": (
        *("shuffled-3.11", "shuffled-3.12", "shuffled-3.13"),
        *("shuffled-n0-3.11", "shuffled-n0-3.12", "shuffled-n0-3.13"),
    ),
}
"""The files of each kind of run, without their ending."""


class Records:
    """The folder of records; the page that shows one is built anew when it changes."""

    def __init__(self, env: BuildEnvironment) -> None:
        self.env = env

    def of(self, kind: str) -> dict[str, Record | None]:
        """Return the records of a kind by their names; None for what was not run."""
        return {name: self.read(name) for name in EXPECTED[kind]}

    def read(self, name: str) -> Record | None:
        """Return one record, or None.

        Raises:
            ExtensionError: the file is no record.
        """
        fields = itemgetter("held", "sentence", "command")
        file = f"reports/soak/{name}.json"
        return read_json(self.env, file, "record of a run", fields)
