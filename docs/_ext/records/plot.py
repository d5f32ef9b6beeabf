"""Draws what the processes held over the rounds.

The picture is drawn when the site is built and is part of the page, so that its colours
can be the page's: what is text or a line of an axis has the colour of text, in the
light as in the dark, and each process has a colour that the style sheet defines. They
differ in their strokes as well.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from typing import Any

from markupsafe import Markup

Record = dict[str, Any]

QUANTITIES = {
    "descriptors": "descriptors",
    "mappings": "mappings",
    "threads": "threads",
    "names": "names",
    "memory": "memory, MiB",
}
STROKES = {"owner": "-", "peer": "--", "manager": ":"}
INK = "#010203"  # stands for the colour of text
COLOURS = {"owner": "#01020a", "peer": "#01020b", "manager": "#01020c"}
SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "rounds",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
KIB = 1024


def picture_of(rounds: Iterable[Record]) -> Markup:
    """Return the picture of some records of rounds, or that there is none."""
    found = [record for record in rounds if has_data(record)]
    if not found:
        return Markup('<p class="missing">There is nothing to draw yet.</p>')
    label = "What owner, peer and manager hold over the rounds, by strategy"
    box = '<div class="wide soak-plot" tabindex="0">{}</div>'
    return Markup(box).format(Markup(drawn(found, label)))


def has_data(record: Record) -> bool:
    """Return whether there is a line to draw."""
    return len(record.get("samples", {}).get("round", [])) > 1


def drawn(found: list[Record], label: str) -> str:
    """Return the picture as an element of the page."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(3.9 * len(found), 7.6), layout="constrained")
        axes = figure.subplots(
            len(QUANTITIES), len(found), sharex="col", sharey="row", squeeze=False
        )
        for column, record in enumerate(found):
            axes[0][column].set_title(record["strategy"], fontfamily="monospace")
            axes[-1][column].set_xlabel("rounds")
            for line, quantity in enumerate(QUANTITIES):
                draw(axes[line][column], record, quantity)
        for line, words in enumerate(QUANTITIES.values()):
            axes[line][0].set_ylabel(words)
        add_legend(figure)
        target = io.StringIO()
        figure.savefig(target, format="svg", transparent=True, metadata={"Date": None})
    return in_colours_of_the_page(target.getvalue(), label)


def add_legend(figure: Any) -> None:
    """Say once which stroke is which process."""
    lines = [line for axis in figure.axes for line in axis.get_lines()]
    named = {line.get_label(): line for line in lines}
    shown = {role: named[role] for role in STROKES if role in named}
    place = {"loc": "outside upper center", "ncols": len(STROKES), "frameon": False}
    figure.legend(shown.values(), shown.keys(), **place)


def draw(axis: Any, record: Record, quantity: str) -> None:
    """Draw one quantity, of all processes or, with names, of none of them."""
    numbers, scale = record["samples"]["round"], KIB if quantity == "memory" else 1
    highest = 1.0
    for role, column in columns(record["samples"], quantity).items():
        values = [value / scale for value in column]
        colour, stroke = COLOURS.get(role, INK), STROKES.get(role, "-")
        axis.plot(numbers, values, stroke, color=colour, label=role, linewidth=1.4)
        highest = max(highest, *values)
    axis.set_ylim(0, max(1.15 * highest, axis.get_ylim()[1]))
    axis.locator_params(axis="y", integer=True, nbins=4)
    axis.axvline(record["warm_up"], color=INK, linewidth=0.5, alpha=0.4)


def columns(samples: dict[str, Any], quantity: str) -> dict[str, list[int]]:
    """Return the figures of one quantity, by process where each has its own."""
    if quantity == "names":
        return {"names": samples["names"]}
    return {role: samples[role][quantity] for role in STROKES if role in samples}


def in_colours_of_the_page(svg: str, label: str) -> str:
    """Return a picture without its prologue, its colours those of the style sheet."""
    svg = svg[svg.index("<svg") :]
    for role, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--soak-{role})")
    svg = svg.replace(INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
