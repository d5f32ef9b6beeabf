"""Reads the committed records of soak runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError

Record = dict[str, Any]

EXPECTED = {
    "rounds": ("rounds-file_descriptor", "rounds-file_system"),
    "kills": ("kills",),
    "fuzz": ("fuzz",),
    "loaded": ("loaded", "loaded-nobody"),
    "shuffled": (
        *("shuffled-3.11", "shuffled-3.12", "shuffled-3.13"),
        *("shuffled-n0-3.11", "shuffled-n0-3.12", "shuffled-n0-3.13"),
    ),
}
"""The files of each kind of run, without their ending."""


class Records:
    """The folder of records; whoever reads one is rebuilt when it changes."""

    def __init__(self, env: BuildEnvironment, folder: str) -> None:
        self.env = env
        self.folder = Path(env.srcdir, folder)

    def of(self, kind: str) -> dict[str, Record | None]:
        """Return the records of a kind by their names; None for what was not run."""
        return {name: self.read(name) for name in EXPECTED[kind]}

    def read(self, name: str) -> Record | None:
        """Return one record, or None.

        Raises:
            ExtensionError: the file is no record.
        """
        path = self.folder / f"{name}.json"
        self.env.note_dependency(str(path))
        if not path.exists():
            return None
        try:
            record: Record = json.loads(path.read_text(encoding="utf-8"))
            record["held"], record["sentence"], record["command"]
        except (ValueError, KeyError) as error:
            raise ExtensionError(f"{path} is no record of a run: {error}") from error
        return record
