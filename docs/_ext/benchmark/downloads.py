"""Writes the figures of the page as data, beside the pages.

``benchmark.csv`` has a line for each cell of each subject, ``benchmark-scaling.csv``
one for each point of the scaling; ``benchmark.json`` has both, with all samples and
with the machines they were measured on.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from docutils import nodes
from sharedtensor_bench.results import (
    Result,
    Results,
    Spread,
    ratios,
    spread_of,
)
from sharedtensor_bench.rows import ROWS
from sphinx.application import Sphinx

from benchmark.lines import THEIRS

Record = dict[str, Any]

ROWS_CSV, SCALING_CSV, ALL_JSON = (
    "benchmark.csv",
    "benchmark-scaling.csv",
    "benchmark.json",
)
LINKS = (
    '<p class="cost-data">The figures as data: '
    f'<a href="{ROWS_CSV}" download>rows as CSV</a>, '
    f'<a href="{SCALING_CSV}" download>scaling as CSV</a>, '
    f'<a href="{ALL_JSON}" download>all with samples and machines as JSON</a>.</p>'
)


def links(found: Sequence[Results]) -> list[nodes.Node]:
    """Return the links to the files, which lie beside the page."""
    return [nodes.raw("", LINKS, format="html")] if found else []


def write(app: Sphinx, found: Sequence[Results]) -> None:
    """Write the files, where the pages are HTML and something was measured."""
    if app.builder.format != "html" or not found:
        return
    rows, points = list(rows_of(found)), list(points_of(found))
    runs = [run_of(results) for results in found]
    data = {"runs": runs, "rows": rows, "scaling": points}
    for name, text in {
        ROWS_CSV: as_csv(rows),
        SCALING_CSV: as_csv(points),
        ALL_JSON: json.dumps(data, indent=1) + "\n",
    }.items():
        Path(app.outdir, name).write_text(text, encoding="utf-8")


def run_of(results: Results) -> Record:
    """Return when, where and of what one run was made."""
    data = results.as_data()
    return {
        key: data[key]
        for key in ("started", "seconds", "machine", "options", "implementations")
    }


def rows_of(found: Iterable[Results]) -> Iterator[Record]:
    """Yield a record for each result."""
    for results in found:
        theirs = {
            one.cell: one for one in results.results if one.implementation == THEIRS
        }
        for result in results.results:
            yield row_of(results.started, result, theirs.get(result.cell))


def row_of(started: str, result: Result, theirs: Result | None) -> Record:
    """Return a result with its ratios; what there is none of is None."""
    row = ROWS[result.row]
    pairs = ratios(result.samples, theirs.samples) if theirs else []
    return {
        "started": started,
        "implementation": result.implementation,
        "strategy": result.strategy,
        "task": row.task,
        "row": result.row,
        "meaning": row.meaning,
        "channel": result.channel,
        "start_method": result.start_method,
        "unit": result.unit,
        "repeats": len(result.samples),
        **columns("", spread_of(result.samples)),
        **columns("over_floor_", spread_of(result.floor_ratios)),
        **columns(f"of_{THEIRS}_", spread_of(pairs)),
        "absent": result.absent,
        "samples": result.samples,
        "floor": result.floor,
    }


def columns(prefix: str, spread: Spread | None) -> Record:
    """Return median and quartiles under the names of their columns."""
    names = {"median": "middle", "quartile_1": "low", "quartile_3": "high"}
    return {
        prefix + name: round(getattr(spread, field), 4) if spread else None
        for name, field in names.items()
    }


def points_of(found: Iterable[Results]) -> Iterator[Record]:
    """Yield a record for each point of the scaling."""
    for results in found:
        for point in results.scaling:
            yield {"started": results.started, **point}


def as_csv(records: Sequence[Record]) -> str:
    """Return records as CSV, without what is a list."""
    text = io.StringIO()
    lists = {name for one in records for name in one if isinstance(one[name], list)}
    names = [name for name in (records[0] if records else {}) if name not in lists]
    writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()
