"""What the checks that need a GPU have come to, from the folder that they leave.

``ci/gpu-checks.sh --out docs/reports/gpu`` writes it. Without one the page says that no
device was there, and a rehearsal on the emulated runtime is never shown as a device.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from elements import missing, paragraph, read_json, table
from sphinx.util.docutils import SphinxDirective

NOT_YET = "Not yet run on a device: there is no record of one."
REHEARSAL = "On the emulated runtime: nothing here counts as CUDA."
HEAD = ["Step", "What it shows", "Found", "Seconds"]


class GpuChecksDirective(SphinxDirective):
    """``{gpu-checks} FOLDER``: the machine, and a row for each step."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Render the record, or say that there is none."""
        folder = self.arguments[0]
        summary, facts = f"{folder}/summary.json", f"{folder}/facts.json"
        record = read_json(self.env, summary, "record of checks on a GPU", shown)
        met = read_json(self.env, facts, "record of a GPU machine", machine)
        if record is None:
            return [missing(NOT_YET)]
        where = [paragraph(machine(met))] if met else []
        stands_in = [missing(NOT_YET), missing(REHEARSAL)] if record["emulated"] else []
        return [*stands_in, *where, *shown(record)]


def shown(record: dict[str, Any]) -> list[nodes.Node]:
    """Return the table of the steps."""
    label = " (emulated)" * record["emulated"]
    rows = [
        [one["name"], one["title"], one["status"] + label, one["seconds"]]
        for one in record["steps"]
    ]
    return [paragraph(f"Saved at {record['saved']}."), table(HEAD, rows)]


def machine(facts: dict[str, Any]) -> str:
    """Return the devices and versions in one sentence."""
    met = facts["met"]
    names = ", ".join(one["name"] for one in facts["devices"])
    found = [f"{name} {version}" for name, version in met["libraries"].items()]
    driver = met.get("driver") or "not known"
    return f"{names}; driver {driver}; {', '.join(found) or 'no library'}."
