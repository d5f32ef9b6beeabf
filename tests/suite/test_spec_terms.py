"""The terms and profiles of the spec: how they are read, found and hashed."""

from dataclasses import replace

import pytest
from sharedtensor_conformance import clauses
from sharedtensor_conformance.adapter import PROFILES
from sharedtensor_conformance.profiles import (
    load_profiles,
    parse_profiles,
    problems_of_needs,
)
from sharedtensor_conformance.spec_source import SpecError, section
from sharedtensor_conformance.terms import Terms, load_terms

GLOSSARY = """\
# Some terms

```{glossary}
drop
  To give up a tensor.

in flight
  On its way to a receiver.

send
sent
  To put a tensor
  on a channel.

tensor
  A window.
```
"""


def found(text, glossary=GLOSSARY):
    return [
        (use.term.name, text[use.start : use.end]) for use in Terms(glossary).uses(text)
    ]


def test_terms_are_found_with_their_inflections():
    text = "Tensors that were sent and dropped, in\nflight, by sending and dropping."
    assert found(text) == [
        ("tensor", "Tensors"),
        ("send", "sent"),
        ("drop", "dropped"),
        ("in flight", "in\nflight"),
        ("send", "sending"),
        ("drop", "dropping"),
    ]


def test_code_roles_and_parts_of_words_are_no_terms():
    assert found("`drop` and {clause}`SHARE-1 drop`, a droplet, tensorial") == []


def test_used_by_follows_the_definitions():
    assert list(Terms(GLOSSARY).used_by("What was sent.")) == ["send", "tensor"]


@pytest.mark.parametrize("wrong", ["drop\n\n", "drop\n  Once.\n\ndrop\n  Twice.\n"])
def test_a_term_has_one_definition(wrong):
    with pytest.raises(SpecError, match="'drop' needs one definition"):
        Terms(f"```{{glossary}}\n{wrong}```\n")


def test_a_section_ends_where_the_next_one_begins():
    page = "# Page\n\n## One\n\nFirst.\n\n## Two\n\nSecond.\n"
    assert section(page, "One") == "First."
    assert section(page, "Two") == "Second."
    with pytest.raises(SpecError, match="the section 'Three' is missing"):
        section(page, "Three")


def test_the_hash_covers_the_rules_by_which_all_clauses_are_read(monkeypatch):
    first = clauses.load_clauses()["SHARE-1"].hash
    clauses._hash.cache_clear()
    monkeypatch.setattr(clauses, "load_rules", lambda: "Everything is a MAY.")
    assert clauses.load_clauses()["SHARE-1"].hash != first
    clauses._hash.cache_clear()


@pytest.fixture
def hash_with(monkeypatch):
    """Return the hash of SHARE-1 where terms or profiles were changed."""

    def changed(terms=None, profiles=None):
        monkeypatch.setattr(clauses, "load_terms", lambda: terms or load_terms())
        known = profiles or load_profiles()
        monkeypatch.setattr(clauses, "load_profiles", lambda: known)
        clauses._hash.cache_clear()
        return clauses.load_clauses()["SHARE-1"].hash

    yield changed
    clauses._hash.cache_clear()


def glossary(**definitions):
    entries = "".join(f"{name}\n  {text}\n\n" for name, text in definitions.items())
    return Terms(f"```{{glossary}}\n{entries}```\n")


def test_the_hash_covers_the_definitions_that_a_clause_uses(hash_with):
    known = {"tensor": "A window on a storage.", "storage": "Memory.", "manager": "It."}
    first = hash_with(glossary(**known))
    assert hash_with(glossary(**known)) == first
    assert hash_with(glossary(**known | {"tensor": "A view on a storage."})) != first
    assert hash_with(glossary(**known | {"storage": "Some memory."})) != first
    assert hash_with(glossary(**known | {"manager": "Another."})) == first


def test_the_hash_covers_what_the_profile_claims(hash_with):
    first = hash_with()
    for name, same in (("core", False), ("share", True)):
        changed = replace(load_profiles()[name], claim="Something else.")
        assert (hash_with(profiles=load_profiles() | {name: changed}) == first) == same


def test_the_spec_has_the_profiles_of_the_contract():
    assert list(load_profiles()) == list(PROFILES)


def test_every_clause_has_a_profile_that_the_spec_explains():
    used = {clause.profile for clause in clauses.load_clauses().values()}
    assert used <= set(load_profiles())


def test_needs_are_read():
    read = parse_profiles("one\n  It is one.\n\ntwo needs one\n  It is\n  two.\n")
    assert read["two"].needs == ("one",)
    assert read["two"].claim == "It is two."


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("one\n", "the profile 'one' needs a claim"),
        ("One\n  It is one.\n", "the profile 'One' needs a claim"),
        ("one needs two\n  It is one.\n", "one needs 'two', which is no profile"),
    ],
)
def test_malformed_profiles_are_named(wrong, said):
    with pytest.raises(SpecError, match=said):
        parse_profiles(wrong)


def test_a_claim_without_what_it_needs_is_a_problem():
    assert problems_of_needs({"core", "manager", "strategy-fs"}) == []
    (said,) = problems_of_needs({"core", "manager"})
    assert said.startswith("the profile 'manager' is claimed and needs 'strategy-fs'")
