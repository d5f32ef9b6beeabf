"""A badge for the page of a project: what a run said, in a few words.

It has two forms: a picture, and the JSON from which services for badges draw one.
"""

from __future__ import annotations

import json

from sharedtensor_conformance.report.judge import Standing
from sharedtensor_conformance.report.records import Run, Summary
from sharedtensor_conformance.report.templating import filled
from sharedtensor_conformance.report.terminal import standings

LABEL = "shared-tensor-spec"

COLOURS = {
    "green": "#1b6e2d",
    "orange": "#8f4f00",
    "red": "#b3261e",
    "lightgrey": "#5c5f66",
}
"""The colours, by the names that services know; white can be read on each."""

CHARACTER = 6.6
"""The width of a character of the badge, in pixels; the text is stretched to it."""


def message(run: Run, summary: Summary) -> tuple[str, str]:
    """Return the words of the badge, and the name of its colour."""
    counts = standings(run, summary)
    broken = sum(
        counts[one] for one in (Standing.BROKEN, Standing.ADVISORY, Standing.EXPECTED)
    )
    said = f"{counts[Standing.HELD]} held, {broken} broken"
    if not summary.complete:
        return f"cut short, {said}", "lightgrey"
    if summary.exit_status:
        return said, "red"
    if not run.selection.full:
        return f"partial, {said}", "lightgrey"
    if summary.conforms:
        return f"conforms, {counts[Standing.HELD]} held", "green"
    return said, "orange"


def badge_json(run: Run, summary: Summary) -> str:
    """Return the badge as services for badges read it (shields.io, "endpoint")."""
    text, colour = message(run, summary)
    data = {"schemaVersion": 1, "label": LABEL, "message": text, "color": colour}
    return json.dumps(data) + "\n"


def badge_svg(run: Run, summary: Summary) -> str:
    """Return the badge as a picture."""
    text, colour = message(run, summary)
    left, right = (round(len(words) * CHARACTER) + 10 for words in (LABEL, text))
    content = {
        "label": LABEL,
        "message": text,
        "fill": COLOURS[colour],
        "left": left,
        "right": right,
        "width": left + right,
    }
    return filled("badge.svg", content)
