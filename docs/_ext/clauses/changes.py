"""Compares the clauses with an earlier text of them: hash before, hash after, and why.

`FILE` was recorded once, from the text that two engineers read, and is never changed.
What is there now is read from the spec, so the comparison cannot go stale.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from sharedtensor_conformance.clauses import Clause

FILE = "docs/reports/earlier-hashes.json"
"""For each clause its hash in that text, and a digest of what it binds by itself."""


class Earlier(NamedTuple):
    """A clause as it was: its hash, and the digest of level, profile and text."""

    hash: str
    binds: str


class Change(NamedTuple):
    """A clause whose hash is another one now.

    Args:
        before: its hash in the earlier text; empty for a clause that is new.
        reworded: whether its own level, profile or text differs, and not only the
            definitions and rules that it is read by.
    """

    clause: Clause
    before: str
    reworded: bool


def digest(clause: Clause) -> str:
    """Return twelve hexadecimal digits over level, profile and text of a clause."""
    parts = [clause.level, clause.profile, " ".join(clause.text.split())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def read_earlier(root: Path) -> dict[str, Earlier]:
    """Return the clauses of the earlier text below `root`; none where there is none."""
    file = root / FILE
    if not file.is_file():
        return {}
    recorded = json.loads(file.read_text(encoding="utf-8"))
    return {id: Earlier(**fields) for id, fields in recorded.items()}


def changes(clauses: Iterable[Clause], earlier: Mapping[str, Earlier]) -> list[Change]:
    """Return the clauses with another hash, first those with other words."""
    found = []
    for clause in clauses:
        was = earlier.get(clause.id, Earlier("", ""))
        if was.hash != clause.hash:
            reworded = was.binds != digest(clause)
            found.append(Change(clause, was.hash, reworded))
    return sorted(found, key=lambda change: not change.reworded)
