"""The picture of the field: what each implementation holds and breaks, by chapter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from docutils import nodes
from sharedtensor_conformance.clauses import Clause

from clauses import boxes
from clauses.links import Links
from clauses.outcomes import counted, in_words, to_name
from clauses.rendering import rendered
from clauses.reports import Column


def field(
    columns: Sequence[Column],
    clauses: Sequence[Clause],
    titles: Mapping[str, str],
    links: Links,
) -> nodes.Node:
    """Return the picture; each part of it leads into the matrix."""
    by_chapter = groupby(clauses, key=lambda clause: clause.chapter)
    return rendered(
        "field.html",
        columns=[bar_of(column, clauses, links) for column in columns],
        chapters=[
            chapter_of(name, titles[name], list(members), columns, links)
            for name, members in by_chapter
        ],
        outcomes=to_name(columns, clauses),
        total=len(clauses),
        simulated=[note for column in columns for note in stand_in_notes(column)],
    )


def stand_in_notes(column: Column) -> Iterator[str]:
    """Yield what was judged on a device that stands in for a real one."""
    judged = column.judgements.values()
    devices = Counter(device for one in judged for device in boxes.stand_ins(one))
    for device, count in devices.items():
        yield f"{count} of {column.name} on the {device} device, never on CUDA"


def bar_of(column: Column, clauses: Sequence[Clause], links: Links) -> dict[str, Any]:
    """Return what the template needs of one implementation."""
    counts = counted(column, clauses).items()
    return {
        "name": column.name,
        "version": column.title.removeprefix(column.name).strip(),
        "title": column.title,
        "date": max(report.started for report in column.reports).partition("T")[0],
        "page": links.implementation(column.name),
        "parts": [
            (
                outcome,
                count,
                links.matrix(implementation=column.slug, verdict=outcome.slug),
            )
            for outcome, count in counts
        ],
    }


def chapter_of(
    name: str,
    title: str,
    clauses: Sequence[Clause],
    columns: Sequence[Column],
    links: Links,
) -> dict[str, Any]:
    """Return what the template needs of one chapter."""
    cells = []
    for column in columns:
        counts = counted(column, clauses)
        cells.append(
            {
                "name": column.name,
                "url": links.matrix(name, implementation=column.slug),
                "counts": counts,
                "words": in_words(counts),
                "first": next(iter(counts)),
            }
        )
    return {
        "name": name,
        "about": title.partition(": ")[2],
        "url": links.matrix(name),
        "cells": cells,
    }
