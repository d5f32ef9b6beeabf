"""Renders results as sentences and tables."""

from __future__ import annotations

from collections.abc import Iterable

from docutils import nodes
from elements import folded_table, missing, paragraph, table
from sharedtensor_bench.results import Result, Results, Subject
from sharedtensor_bench.scaling import TITLES
from sharedtensor_bench.table import busy, by_cell, figure
from sharedtensor_bench.table import circumstances as lines_of


def circumstances(results: Results) -> list[nodes.paragraph]:
    """Return when, where and of what the results were made."""
    subjects = "; ".join(
        f"{subject} ({subject.version}, Python {subject.python})"
        for subject in results.implementations
    )
    day = results.started.partition("T")[0]
    where, wake_up, repeats, *_ = lines_of(results)
    lines = (f"{day}: {subjects}.", f"{where}.", f"{wake_up}.", f"{repeats}.")
    found = [paragraph(" ".join(lines), classes=["soak-how"])]
    if warning := busy(results):
        said = f"{warning[0].upper()}{warning[1:]}."
        found.append(missing(said))
    return found


def rows(results: Results) -> list[nodes.Node]:
    """Return a table with a line for each cell and a column for each subject."""
    cells = by_cell(results.results)
    if not cells:
        return []
    subjects = results.implementations
    head = ["Row", *map(str, subjects)]
    shown = table(head, (line_of(title, cells[title], subjects) for title in cells))
    channels = dict.fromkeys(one.channel for one in results.results if one.channel)
    return [folded_table(f"{len(cells)} rows over {', '.join(channels)}", shown)]


def line_of(
    title: str, found: Iterable[Result], subjects: Iterable[Subject]
) -> list[object]:
    """Return the cell's title and its figures by subject."""
    by_subject = {(one.implementation, one.strategy): one for one in found}
    keys = [(subject.implementation, subject.strategy) for subject in subjects]
    return [title, *(figures_of(by_subject.get(key)) for key in keys)]


def figures_of(result: Result | None) -> str:
    """Return median and multiple of the floor, or why there is neither."""
    if result is None or result.median is None:
        return result.absent if result is not None else ""
    times = result.over_floor
    multiple = f" ({times:.1f} times the floor)" if times else ""
    return figure(result.median, result.unit) + multiple


def scaling(results: Results) -> list[nodes.Node]:
    """Return a table for each thing that grows."""
    tables: list[nodes.Node] = []
    for what, title in TITLES.items():
        points = [point for point in results.scaling if point["what"] == what]
        if points:
            tables.append(table_of(title, points, results.implementations))
    return tables


def table_of(
    title: str, points: list[dict[str, object]], subjects: Iterable[Subject]
) -> nodes.container:
    """Return the cost of a message by what grows and by subject."""
    lines: dict[object, dict[str, object]] = {}
    for point in points:
        subject = f"{point['implementation']} {point['strategy']}"
        taken = point["median"]
        shown = figure(taken, "us") if isinstance(taken, float) else point["absent"]
        lines.setdefault(point["to"], {})[subject] = shown
    names = [str(subject) for subject in subjects]
    shown_lines = (
        [f"{to:,}", *(line.get(name, "") for name in names)]
        for to, line in lines.items()
    )
    return table([title.capitalize(), *names], shown_lines)
