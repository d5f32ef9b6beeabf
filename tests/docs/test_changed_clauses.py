"""What the site and the history say of clauses whose text has changed."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from sharedtensor_conformance.clauses import load_clauses

ROOT = Path(__file__).parents[2]
HISTORY = ROOT / "docs/history.md"
SECTION = "## Changed clauses"
ENTRY = re.compile(r"^- \{clause\}`([A-Z]+-\d+)`", re.MULTILINE)


@pytest.fixture
def changes(extension):
    return extension("clauses.changes")


def entries():
    """Return the ids of the clauses that have an entry in the history, by chapter."""
    text = HISTORY.read_text(encoding="utf-8")
    section = text.partition(f"\n{SECTION}\n")[2].partition("\n## ")[0]
    _, *blocks = re.split(r"^### ", section, flags=re.MULTILINE)
    assert blocks
    return {block.partition("\n")[0]: ENTRY.findall(block) for block in blocks}


def test_changed_clauses_are_found_with_their_hashes(changes):
    same, other_terms, reworded, new = list(load_clauses().values())[:4]
    earlier = {
        same.id: changes.Earlier(same.hash, changes.digest(same)),
        other_terms.id: changes.Earlier("before", changes.digest(other_terms)),
        reworded.id: changes.Earlier("earlier", "other words"),
    }
    found = changes.changes([same, other_terms, reworded, new], earlier)
    assert [(c.clause.id, c.before, c.reworded) for c in found] == [
        (reworded.id, "earlier", True),
        (new.id, "", True),
        (other_terms.id, "before", False),
    ]


@pytest.mark.parametrize("field", ["level", "profile", "text"])
def test_the_digest_covers_what_a_clause_binds_by_itself(changes, field):
    clause = load_clauses()["SHARE-1"]
    assert changes.digest(clause) != changes.digest(replace(clause, **{field: "x"}))
    assert changes.digest(clause) == changes.digest(replace(clause, why="x"))


def test_the_history_has_an_entry_for_each_clause_with_other_words(changes):
    earlier = changes.read_earlier(ROOT)
    found = changes.changes(load_clauses().values(), earlier)
    reworded = {c.clause.id for c in found if c.reworded}
    assert reworded
    assert reworded <= {id for ids in entries().values() for id in ids}


def test_each_entry_of_the_history_stands_once_where_its_clause_does():
    clauses = list(load_clauses())
    for chapter, ids in entries().items():
        assert {id.partition("-")[0] for id in ids} == {chapter}
        places = [clauses.index(id) for id in ids]
        assert places == sorted(set(places))
