"""The matrix: each clause by each implementation, with what is behind a verdict.

It is a plain table, in which a verdict with something behind it is a button that opens
it: that works without a script. What `_static/matrix.js` adds is filters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from docutils import nodes
from sharedtensor_conformance.clauses import LEVELS, Clause

from clauses import boxes
from clauses.known import Deviation
from clauses.links import Links
from clauses.outcomes import Outcome, counted, outcome_in, to_name
from clauses.rendering import rendered
from clauses.reports import Column, Judgement


def matrix(
    columns: Sequence[Column],
    clauses: Sequence[Clause],
    titles: Mapping[str, str],
    links: Links,
) -> nodes.Node:
    """Return the matrix; `titles` has those of the chapters."""
    by_chapter = groupby(clauses, key=lambda clause: clause.chapter)
    chapters = [
        chapter_of(name, titles[name], list(members), columns, links)
        for name, members in by_chapter
    ]
    return rendered(
        "matrix.html",
        columns=[
            {"slug": one.slug, "name": one.name, "page": links.implementation(one.name)}
            for one in columns
        ],
        outcomes=to_name(columns, clauses),
        levels=[level for level in LEVELS if any(c.level == level for c in clauses)],
        profiles=sorted({clause.profile for clause in clauses}),
        chapters=chapters,
    )


def chapter_of(
    name: str,
    title: str,
    clauses: Sequence[Clause],
    columns: Iterable[Column],
    links: Links,
) -> dict[str, Any]:
    """Return what the template needs of one chapter."""
    columns = list(columns)
    return {
        "name": name,
        "title": title,
        "counts": [counted(column, clauses) for column in columns],
        "rows": [
            {
                "clause": clause,
                "url": links.clause(clause.id),
                "cells": [cell_of(column, clause, links) for column in columns],
            }
            for clause in clauses
        ],
    }


def cell_of(column: Column, clause: Clause, links: Links) -> dict[str, Any]:
    """Return what the template needs of one verdict."""
    judgement = column.judgements.get(clause.id)
    if judgement is None:
        outcome = Outcome.NOT_RUN
        return {
            "outcome": outcome,
            "symbol": outcome.symbol,
            "word": str(outcome),
            "behind": False,
        }
    anchor = boxes.anchor_of(column, clause.id)
    return {
        "outcome": outcome_in(column, clause.id),
        "symbol": boxes.symbol_of(judgement),
        "word": word_of(judgement),
        "behind": boxes.has_evidence(judgement, clause),
        "id": f"behind-{anchor}",
        "title": column.title,
        "tally": boxes.tally(judgement).astext(),
        "stale": boxes.is_of_another_text(judgement, clause),
        "note": boxes.note_of(judgement),
        "causes": list(
            with_addresses((*judgement.causes, *judgement.not_shown), links)
        ),
        "evidence": links.clause(clause.id, anchor),
    }


def word_of(judgement: Judgement) -> str:
    """Return a verdict as a word, with the device that stood in for a real one."""
    return ", ".join([boxes.word_of(judgement), *boxes.stand_ins(judgement)])


def with_addresses(causes: Iterable[Deviation], links: Links) -> Iterator[Deviation]:
    """Yield causes whose programs are addresses of pages."""
    for cause in causes:
        program = links.source(cause.program) if cause.program else ""
        yield replace(cause, program=program)
