"""``shared-tensor-spec clauses``: shows where each clause is tested and implemented."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from sharedtensor_conformance.clauses import Clause, load_clauses, matching_clauses
from sharedtensor_conformance.cli.command import YES, Command, WrongUse
from sharedtensor_conformance.evidence import (
    Citation,
    Evidence,
    Sources,
    citing,
    read_evidence,
)
from sharedtensor_conformance.examples import Example, read_examples

TEACHING = """\
Without ids, the command prints one line for each clause, with the number of its tests,
of the places in the reference that implement it, and of its mutants. With ids, it
prints the text of each clause, and the file and line of each of these. It reads the
sources and imports nothing, so the reference does not have to be installed.

examples:
  shared-tensor-spec clauses
  shared-tensor-spec clauses GRAD-2 GRAD-3
  shared-tensor-spec clauses 'VIEW-*'
  shared-tensor-spec clauses SHARE-1 --example
  shared-tensor-spec clauses --format json

exit status:
  0    the clauses were printed"""
WIDTH = 76
"""The width of the text of a clause."""

HEAD = ("clause", "level", "profile", "tests", "code", "mutants", "title")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    text = (
        "a clause to show with its tests, code and mutants, or a pattern in which * "
        "matches any text (default: list all)"
    )
    parser.add_argument("ids", metavar="ID", nargs="*", help=text)
    text = "with ids: also show the steps of the simplest test of each clause"
    parser.add_argument("--example", action="store_true", help=text)
    text = "output format (default: %(default)s)"
    parser.add_argument("--format", choices=["text", "json"], default="text", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Print the clauses."""
    clauses = chosen(arguments.ids)
    evidence = read_evidence(Sources.installed())
    if arguments.format == "json":
        print(json.dumps([as_data(one, evidence) for one in clauses], indent=1))
    elif arguments.ids:
        examples = read_examples(Sources.installed()) if arguments.example else {}
        shown = (
            "\n".join([*described(one, evidence), *told(examples.get(one.id))])
            for one in clauses
        )
        print("\n\n".join(shown))
    else:
        print("\n".join(table(clauses, evidence)))
    return YES


def chosen(ids: list[str]) -> list[Clause]:
    """Return the clauses with these ids, or all clauses if there are no ids.

    An id may be a pattern, in which * matches any text.

    Raises:
        WrongUse: the spec has no clause that one of the ids matches.
    """
    known = load_clauses()
    found: dict[str, None] = {}
    for id in ids or ["*"]:
        meant = matching_clauses(id)
        if not meant and matching_clauses(f"{id.upper()}-*"):
            raise WrongUse(f"{id!r} is a chapter; give '{id.upper()}-*' for all of it")
        if not meant:
            close = get_close_matches(id.upper(), known, n=1)
            hint = (
                f"did you mean {close[0]}?" if close else "run 'clauses' to list them"
            )
            raise WrongUse(f"there is no clause {id!r}: {hint}")
        found |= dict.fromkeys(meant)
    return [known[id] for id in found]


def as_data(clause: Clause, evidence: Evidence) -> dict[str, Any]:
    """Return a clause with its tests, code and mutants, as data for JSON."""
    return {
        "id": clause.id,
        "title": clause.title,
        "level": clause.level,
        "profile": clause.profile,
        "observes": clause.observes,
        "hash": clause.hash,
        "text": clause.text,
        "why": clause.why,
        "promises": list(clause.promises),
        "tests": [_place(one) for one in citing(evidence.tests, clause.id)],
        "code": [_place(one) for one in citing(evidence.code, clause.id)],
        "no_code": clause.no_code,
        "mutants": [_mutant(one) for one in citing(evidence.mutants, clause.id)],
    }


def _place(found: Any) -> dict[str, Any]:
    return {"name": found.name, "file": found.file, "line": found.line}


def _mutant(found: Citation) -> dict[str, Any]:
    return _place(found) | {
        "sentence": found.sentence,
        "replaces": [_place(place) for place in found.replaces],
    }


def described(clause: Clause, evidence: Evidence) -> Iterator[str]:
    """Yield the lines that show one clause with its text, tests, code and mutants."""
    yield f"{clause.id}  {clause.title}"
    promises = f", answers {' '.join(clause.promises)}" if clause.promises else ""
    yield f"  {clause.level}, profile {clause.profile}, hash {clause.hash}{promises}"
    yield from (f"    {line}" for line in textwrap.wrap(clause.plain_text, WIDTH))
    for kind in ("tests", "code"):
        for one in citing(getattr(evidence, kind), clause.id):
            yield f"  {kind:8}{one.file}:{one.line}  {one.name}"
    if clause.no_code:
        yield f"  no code  {clause.no_code}"
    for mutant in citing(evidence.mutants, clause.id):
        yield f"  mutant  {mutant.file}:{mutant.line}  {mutant.name}"
        for place in mutant.replaces:
            where = f"{place.file}:{place.line}  " if place.file else ""
            yield f"    replaces  {where}{place.name}"


def told(example: Example | None) -> Iterator[str]:
    """Yield the lines of an example."""
    if example is None:
        return
    yield f"  example {example.test.file}:{example.test.line}  {example.summary}"
    for line in example.steps.splitlines():
        yield f"    {line}".rstrip()
    for place in example.calls:
        yield f"    needs   {place.file}:{place.line}  {place.name}"


def table(clauses: list[Clause], evidence: Evidence) -> Iterator[str]:
    """Yield one line for each clause."""
    rows = [HEAD, *(_row(clause, evidence) for clause in clauses)]
    columns = list(zip(*rows, strict=True))[:-1]
    widths = [max(map(len, column)) for column in columns]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        yield "  ".join([*cells, row[-1]])


def _row(clause: Clause, evidence: Evidence) -> tuple[str, ...]:
    kinds = (evidence.tests, evidence.code, evidence.mutants)
    counts = (str(len(citing(citations, clause.id))) for citations in kinds)
    return (clause.id, clause.level, clause.profile, *counts, clause.title)


command = Command(
    "clauses",
    "list the clauses, each with its tests, code and mutants",
    TEACHING,
    add_options,
    run,
)
