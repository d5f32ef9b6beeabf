"""Draws results: the median of each row with its floor, and how messages scale.

Matplotlib is imported only for drawing. It is a dependency of the extra ``bench``.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from sharedtensor_conformance.bench.results import Result, Results
from sharedtensor_conformance.bench.scaling import TITLES

MARKERS = "osD^vP*"
FALLBACK = 1.0


class PlotError(Exception):
    """The plot cannot be drawn; the message is one sentence."""


def save(results: Results, path: str) -> None:
    """Draw the results into a file; its suffix determines the format.

    Raises:
        PlotError: matplotlib is missing, or the file cannot be written.
    """
    drawn = draw(results, figure_class())
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        drawn.savefig(path, metadata={"Date": None} if path.endswith("svg") else None)
    except (OSError, ValueError) as error:
        raise PlotError(f"the plot cannot be written to {path}: {error}") from error


def figure_class() -> Any:
    """Return matplotlib's `Figure`.

    Raises:
        PlotError: matplotlib is missing.
    """
    try:
        return import_module("matplotlib.figure").Figure
    except ImportError:
        raise PlotError(
            "a plot needs matplotlib: pip install 'shared-tensor-spec[bench]'"
        ) from None


def draw(results: Results, make_figure: Any) -> Any:
    """Return a figure of the rows and, if it was measured, of the scaling."""
    cells = timed_cells(results.results)
    kinds = [what for what in TITLES if any(p["what"] == what for p in results.scaling)]
    height = 1.5 + 0.28 * len(cells) if cells else 0.0
    panels = [height] * bool(cells) + [3.0] * bool(kinds)
    if not panels:
        raise PlotError("there is nothing to draw: no row has figures")
    figure = make_figure(figsize=(9, sum(panels)), layout="constrained")
    parts = figure.subfigures(len(panels), 1, height_ratios=panels, squeeze=False)
    if cells:
        draw_rows(parts[0][0].subplots(), cells, results)
    if kinds:
        axes = parts[-1][0].subplots(1, len(kinds), squeeze=False)[0]
        for axis, what in zip(axes, kinds, strict=True):
            draw_scaling(axis, what, results)
        handles, labels = axes[0].get_legend_handles_labels()
        place = {"loc": "outside upper center", "ncols": 4, "frameon": False}
        parts[-1][0].legend(handles, labels, fontsize="small", **place)
    # A page may use a wider font than the one for which the space was computed.
    figure.get_layout_engine().set(w_pad=0.2)
    return figure


def timed_cells(found: list[Result]) -> dict[str, list[Result]]:
    """Return the timed results by cell, in reverse, so that the first is on top."""
    cells: dict[str, list[Result]] = {}
    for result in found:
        if result.unit == "us" and result.samples:
            parts = (result.row, result.channel, result.start_method)
            cells.setdefault(" ".join(filter(None, parts)), []).append(result)
    return cells


def draw_rows(axis: Any, cells: dict[str, list[Result]], results: Results) -> None:
    """Draw a line for each cell: medians with quartiles, and the floor as a bar."""
    names = [str(subject) for subject in results.implementations]
    for height, found in enumerate(cells.values()):
        for result in found:
            name = f"{result.implementation} {result.strategy}"
            draw_result(axis, height, result, names.index(name))
    for number, name in enumerate(names):
        style = {"marker": MARKERS[number % len(MARKERS)], "color": f"C{number}"}
        axis.plot([], [], linestyle="", label=name, **style)
    axis.plot([], [], linestyle="", marker="|", color="grey", label="floor")
    axis.set_xscale("log")
    axis.set_xlabel("microseconds")
    axis.set_yticks(range(len(cells)), list(cells), fontsize="small")
    axis.invert_yaxis()
    axis.grid(axis="x", alpha=0.3)
    axis.figure.legend(loc="outside upper center", ncols=3, frameon=False)


def draw_result(axis: Any, height: int, result: Result, number: int) -> None:
    """Draw one median with its quartiles, next to those of other subjects."""
    middle = result.median or FALLBACK
    low, high = result.quartiles or (middle, middle)
    at = height + 0.12 * (number - 1.5)
    errors = [[middle - low], [high - middle]]
    style = {"marker": MARKERS[number % len(MARKERS)], "color": f"C{number}"}
    axis.errorbar([middle], [at], xerr=errors, linestyle="", markersize=4, **style)
    for floor in result.floor[:1]:
        axis.plot([floor], [at], linestyle="", marker="|", color="grey")


def draw_scaling(axis: Any, what: str, results: Results) -> None:
    """Draw the cost of a message against the growing size, a line for each subject."""
    for number, subject in enumerate(results.implementations):
        points = [
            (point["to"], point["median"])
            for point in results.scaling
            if point["what"] == what and point["median"] is not None
            if (point["implementation"], point["strategy"])
            == (subject.implementation, subject.strategy)
        ]
        if points:
            xs, ys = zip(*points, strict=True)
            mark = MARKERS[number % len(MARKERS)]
            axis.plot(xs, ys, marker=mark, markersize=4, label=str(subject))
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel(TITLES[what])
    axis.set_ylabel("round trip, microseconds")
