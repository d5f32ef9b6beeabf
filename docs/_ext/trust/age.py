"""When and from what a record was made: a reader has to see how old its figures are."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from elements import paragraph

UNKNOWN = "not recorded"
"""What is said of a record that was made before scripts wrote this down."""


def age(record: dict[str, Any], more: str = "") -> nodes.paragraph:
    """Return the day and the commit of a record, with the Python that it ran on."""
    day = record.get("started", "").partition("T")[0] or UNKNOWN
    commit = record.get("commit") or UNKNOWN
    python = record.get("python") or UNKNOWN
    said = f"Day of the run: {day}; commit: {commit}; Python: {python}.{more}"
    return paragraph(said, ["age"])
