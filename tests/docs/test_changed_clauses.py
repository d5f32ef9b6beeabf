"""What the site says of clauses whose text has changed, and what the changelog says."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_project
from sharedtensor_conformance.clauses import load_clauses

ROOT = Path(__file__).parents[2]
SECTION = "### Changed by two readings"


@pytest.fixture
def changes(monkeypatch):
    """Return the module of the extension."""
    pytest.importorskip("sphinx", reason="its package imports Sphinx")
    monkeypatch.syspath_prepend(tiny_project.EXTENSIONS)
    from clauses import changes

    return changes


def named_in(section):
    """Return the ids of the clauses that a section of the changelog names."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    body = text.partition(f"\n{section}\n")[2].partition("\n### ")[0]
    return set(re.findall(r"\b[A-Z]+-\d+\b", body))


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


def test_the_changelog_names_each_clause_with_other_words(changes):
    earlier = changes.read_earlier(ROOT)
    found = changes.changes(load_clauses().values(), earlier)
    reworded = {c.clause.id for c in found if c.reworded and c.before}
    assert reworded <= named_in(SECTION)
