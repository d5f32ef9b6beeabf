"""Broken clauses are told by their cause, the most basic clause first."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_samples import case, clause, report, spec, view
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.report.groups import CHAPTERS, RESTS_ON, groups_of
from sharedtensor_conformance.report.markdown import markdown
from sharedtensor_conformance.report.signatures import NOT_WAITED, signature
from sharedtensor_conformance.report.terminal import IN_FULL, render

FORK = {"strategy": "file_system", "start_method": "fork"}
SPAWN = {"strategy": "file_system", "start_method": "spawn"}
MISMATCH = "not so: {}: got [1.0, 2.0], not [1, 77]"
REAL = load_clauses()


def fails(clauses, evidence, *, id="", axes=FORK, **fields):
    id = id or f"{clauses} {evidence}"
    return case(clauses, "fail", evidence=evidence, id=id, axes=axes, **fields)


def grouped(*cases, clauses=REAL):
    sample = report(
        cases, clauses=clauses, claims={c.profile for c in clauses.values()}
    )
    return groups_of(sample.cases, sample.summary, clauses)


def firsts(groups):
    return [group.clauses for group in groups]


def test_what_was_blocked_comes_after_what_was_judged():
    said = f"{NOT_WAITED}{{}} cases hung, first '{{}}'\nits wait ended"
    blocked = [
        case(id, "blocked", evidence=said.format(n, f"a[{n}]"), id=id, axes=FORK)
        for n, id in enumerate(["SHARE-1", "SHARE-2"], 3)
    ]
    found = grouped(*blocked, fails("GRAD-1", "not so: x"))
    assert firsts(found) == [("GRAD-1",), ("SHARE-1", "SHARE-2")]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("got 1, not 2", "got 31, not 3"),
        ("not so: x: got [1.0], not [2]", "not so: x: got None, not [3, 4]"),
        ("owner: OSError: [Errno 24] a", "peer: OSError: [Errno 24] a"),
        ("cannot open </torch_737_5>", "cannot open </torch_21_77>"),
        ("peer died of SIGABRT (printed last: what)", "owner died of SIGABRT"),
        (
            "not back after 3 s: owner has 5 more descriptors (5 x /memfd:a)",
            "not back after 0.1 s: peer has 1 more descriptor (1 x /memfd:a)",
        ),
        (
            "not back after 3 s: owner has 5 more descriptors (5 x a); "
            "peer has 1 more descriptor (1 x a)",
            "not back after 3 s: peer has 1 more descriptor (1 x a), after 1 case:",
        ),
        (
            "state-dependent (it held in fresh processes): not so: x",
            "not so: x\nit also left: peer has 1 more thread",
        ),
    ],
)
def test_evidence_of_one_cause_has_one_signature(one, other):
    assert signature(fails("GRAD-1", one)) == signature(fails("GRAD-2", other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("not so: the put raises", "not so: it has a grad"),
        ("peer died of SIGABRT", "peer died of SIGSEGV"),
        (
            "not back after 3 s: owner has 5 more descriptors (5 x /memfd:a)",
            "not back after 3 s: owner has 5 more descriptors (5 x socket)",
        ),
        (
            "not back after 3 s: owner has 5 more descriptors (5 x /memfd:a)",
            "not back after 3 s: owner has 5 more mappings (5 x /memfd:a)",
        ),
    ],
)
def test_evidence_of_other_causes_has_another(one, other):
    assert signature(fails("GRAD-1", one)) != signature(fails("GRAD-1", other))


def test_clauses_with_one_signature_are_a_group_and_the_most_basic_is_first():
    groups = grouped(
        fails("VIEW-8", MISMATCH.format("it is read")),
        fails("GRAD-2", MISMATCH.format("it is read")),
        fails("SHARE-3", MISMATCH.format("it is read")),
    )
    assert firsts(groups) == [("SHARE-3", "VIEW-8", "GRAD-2")]


def test_a_clause_with_two_causes_is_in_two_groups():
    groups = grouped(fails("GRAD-1", "not so: a"), fails("GRAD-1", "not so: b"))
    assert firsts(groups) == [("GRAD-1",), ("GRAD-1",)]


def test_what_rests_on_a_broken_clause_is_told_with_it():
    groups = grouped(
        fails("VIEW-2", MISMATCH.format("the view reads the write")),
        fails("SHARE-1", MISMATCH.format("the write is read")),
    )
    assert firsts(groups) == [("SHARE-1", "VIEW-2")]
    assert groups[0].rests


@pytest.mark.parametrize(
    "other",
    [
        fails("SHARE-8", MISMATCH.format("it is unchanged")),  # it observes errors
        fails("VIEW-2", "not so: the view has a base"),
        fails("VIEW-2", MISMATCH.format("the view reads the write"), axes=SPAWN),
    ],
    ids=["rests on nothing", "fails in another way", "where the basic one holds"],
)
def test_what_may_have_another_cause_is_told_apart(other):
    broken = fails("SHARE-1", MISMATCH.format("the write is read"))
    holds = case("SHARE-1", id="holds", axes=SPAWN)
    assert firsts(grouped(broken, holds, other)) == [("SHARE-1",), other.clauses]


def test_known_deviations_are_grouped_by_their_cause():
    known = {"expected": True, "cause": "It copies."}
    groups = grouped(
        fails("GRAD-2", "not so: a", **known),
        fails("SHARE-1", "not so: b", **known),
        fails("SHARE-2", "not so: a", expected=True, cause="Another."),
        fails("SHARE-4", "not so: a"),
    )
    assert firsts(groups) == [("SHARE-4",), ("SHARE-1", "GRAD-2"), ("SHARE-2",)]


def test_what_takes_few_steps_comes_first():
    many = replace(fails("SHARE-1", "not so: a"), test="test_histories.py::h")
    few = fails("SHARE-1", "not so: quite another value", id="few")
    assert [group.shown.id for group in grouped(many, few)] == ["few", many.id]
    same = replace(many, evidence=few.evidence)
    assert [group.shown.id for group in grouped(same, few)] == ["few"]


def test_a_must_of_core_comes_first():
    order = ["SHARE-1", "CHAN-1", "LIFE-7", "VIEW-3", "START-6"]
    levels = [(REAL[id].level, REAL[id].profile) for id in order]
    less = [("MUST", "views"), ("SHOULD", "strategies")]
    assert levels == [("MUST", "core")] * 3 + less
    words = zip("edcba", reversed(order), strict=True)
    groups = grouped(*(fails(id, f"not so: {word}") for word, id in words))
    assert [group.first for group in groups] == order


def test_the_order_names_each_chapter_and_the_basic_clauses_are_there():
    assert sorted(CHAPTERS) == sorted({clause.chapter for clause in REAL.values()})
    assert {id for ids in RESTS_ON.values() for id in ids} <= REAL.keys()


def test_forty_two_clauses_of_one_cause_are_told_in_a_few_lines():
    """Those of an implementation that copies: each check has its words."""
    others = [c.id for c in REAL.values() if c.observes == "sharing"]
    others.remove("SHARE-1")
    sharing = ["SHARE-1", *others[:41]]
    assert len(sharing) == 42
    broken = [
        fails(id, MISMATCH.format(f"{'xyz'[n % 3]} reads the write"), id=f"{id}[{k}]")
        for n, id in enumerate(sharing)
        for k in range(9)
    ]
    claims = {REAL[id].profile for id in sharing}
    sample = report(broken, clauses=REAL, claims=claims, full=False)
    text = render(view(sample, REAL))
    lines = text.splitlines()
    told = lines[lines.index(next(x for x in lines if x.startswith("SHARE-1  "))) :]
    assert len(told) < 20
    assert len(lines) < 40, "with the table by chapter"
    assert "start with SHARE-1: 41 other clauses fail in the same way" in text
    assert "broken (advisory); start with SHARE-1" in " ".join(text.split())
    assert markdown(view(sample, REAL)).count("<details>") == 1


def test_of_many_groups_the_last_have_the_first_line_of_their_evidence():
    ids = [f"GRAD-{n}" for n in range(1, IN_FULL + 3)]
    clauses = spec(*(clause(id) for id in ids))
    words = "abcdefghijklmnopqrstuvwxyz"
    cases = [fails(id, f"not so: {words[n]}\nmore") for n, id in enumerate(ids)]
    sample = report(cases, clauses=clauses)
    text = render(view(sample, clauses))
    assert text.count("    | not so") == len(ids)
    assert text.count("    | more\n") == IN_FULL
    assert text.count("    | (1 more line; ") == len(ids) - IN_FULL
    assert text.count("  pytest conformance") == len(ids)


def test_many_clauses_that_nothing_judged_are_told_in_a_few_lines():
    sample = report([case("SHARE-1")], clauses=REAL)
    text = render(view(sample, REAL))
    listed = text.partition("no case of this run judged them:\n")[2].partition("\n\n")[
        0
    ]
    assert listed.startswith("  SHARE-2, SHARE-3, SHARE-4, ")
    assert len(listed.splitlines()) < 15


def test_a_group_with_two_known_causes_has_one_title():
    known = [
        fails("GRAD-1", "a", expected=True, cause="One."),
        fails("GRAD-1", "b", expected=True, cause="Two."),
    ]
    sample = report(known)
    text = render(view(sample))
    assert text.count("GRAD-1  The title") == 1
    assert "  cause: One.\n  pytest" in text
    assert "  cause: Two.\n  pytest" in text


def test_known_and_new_deviations_of_a_clause_are_told_apart():
    both = [
        fails("GRAD-1", "a", expected=True, cause="One."),
        fails("GRAD-1", "b"),
    ]
    sample = report(both)
    text = render(view(sample))
    facts = [line for line in text.splitlines() if line.startswith("  MUST")]
    assert facts == [
        "  MUST, profile grad, new; cases of GRAD-1: 2 fail",
        "  MUST, profile grad, known; cases of GRAD-1: 2 fail",
    ]
