"""Draws the committed results as a part of the page, in the page's own text colour."""

from __future__ import annotations

import io

from docutils import nodes
from records.plot import SETTINGS, in_colours_of_the_page
from sharedtensor_conformance.bench.plot import PlotError, draw
from sharedtensor_conformance.bench.results import Results

LABEL = "Microseconds of each row of the benchmark, by implementation and strategy"


def drawn(results: Results) -> list[nodes.Node]:
    """Return the picture, or nothing where there is nothing to draw."""
    import matplotlib
    from matplotlib.figure import Figure

    target = io.StringIO()
    with matplotlib.rc_context(SETTINGS | {"svg.hashsalt": results.started}):
        try:
            figure = draw(results, Figure)
        except PlotError:
            return []
        figure.savefig(target, format="svg", transparent=True, metadata={"Date": None})
    svg = in_colours_of_the_page(target.getvalue(), LABEL)
    return [
        nodes.raw(
            "", f'<div class="wide soak-plot" tabindex="0">{svg}</div>', format="html"
        )
    ]
