"""Makes a badge for a project's web page from a report.

A badge has two formats: an SVG image, and JSON from which a badge service draws one.
"""

from __future__ import annotations

import json

from sharedtensor_conformance.report.judge import Standing
from sharedtensor_conformance.report.needs import NOT_HERE
from sharedtensor_conformance.report.run_view import RunView
from sharedtensor_conformance.report.templating import filled

LABEL = "shared-tensor-spec"

COLOURS = {
    "green": "#1b6e2d",
    "orange": "#8f4f00",
    "red": "#b3261e",
    "lightgrey": "#5c5f66",
}
"""The colours by the names that badge services use; white text is legible on each."""

CHARACTER = 6.6
"""The width of a character in pixels; the text of the badge is stretched to it."""


def message(view: RunView) -> tuple[str, str]:
    """Return the text of the badge and the name of its colour."""
    counts, summary = view.counts, view.summary
    said = f"{counts[Standing.HELD]} held, {view.broken_count} broken"
    if promised := counts[Standing.BREAKS_DOCS]:
        said += f" ({promised} by its documentation)"
    if not_here := counts[Standing.NOT_HERE]:
        said += f", {not_here} {NOT_HERE}"
    if not summary.complete:
        return f"cut short, {said}", "lightgrey"
    if summary.exit_status:
        return said, "red"
    if not view.run.selection.full:
        return f"partial, {said}", "lightgrey"
    if summary.conforms:
        return f"conforms, {counts[Standing.HELD]} held", "green"
    return said, "orange"


def badge_json(view: RunView) -> str:
    """Return the badge as JSON for badge services (shields.io, "endpoint")."""
    text, colour = message(view)
    data = {"schemaVersion": 1, "label": LABEL, "message": text, "color": colour}
    return json.dumps(data) + "\n"


def badge_svg(view: RunView) -> str:
    """Return the badge as an SVG image."""
    text, colour = message(view)
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
