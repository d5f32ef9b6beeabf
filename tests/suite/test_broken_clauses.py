"""Which clauses a failing case breaks: those that the failure is about."""

from __future__ import annotations

import pytest
from sharedtensor_conformance.chapters.shared_steps import judging
from sharedtensor_conformance.harness import clause
from sharedtensor_conformance.harness.case.outcomes import ActorDied, CheckFailed
from sharedtensor_conformance.plugin.execution import Outcome
from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.verdicts import Verdict

CLAUSES = ("VIEW-1", "LIFE-5", "GRAD-2")
CASE = Case("test_a.py::test_b[c]", "test_a.py::test_b", CLAUSES, Verdict.PASS)


def broken_by(error, *mainly):
    """Return the clauses of a case that failed so, in a test mainly about others."""
    return Outcome.of_error(error).with_main_clauses(*mainly).on(CASE).clauses


def raised(*blocks):
    """Return what a failure in nested blocks comes to, the outermost block first."""
    error = CheckFailed("it is not so")

    def fail_in(first=(), *others):
        with judging(*first):
            if others:
                fail_in(*others)
            raise error

    with pytest.raises(CheckFailed):
        fail_in(*blocks)
    return error


def test_failure_that_names_nothing_breaks_all_clauses_or_the_main_one():
    assert broken_by(ActorDied("it died")) == CLAUSES
    assert broken_by(ActorDied("it died"), "LIFE-5") == ("LIFE-5",)


def test_failure_breaks_the_clause_that_it_names():
    assert broken_by(raised(["GRAD-2"])) == ("GRAD-2",)
    assert broken_by(raised(["GRAD-2"]), "LIFE-5") == ("GRAD-2",)


def test_clause_that_the_test_does_not_judge_is_not_broken():
    assert broken_by(raised(["MGR-1"])) == CLAUSES
    assert broken_by(raised(["MGR-1"]), "LIFE-5") == ("LIFE-5",)


def test_innermost_block_is_nearest():
    assert broken_by(raised(["VIEW-1"], ["GRAD-2"])) == ("GRAD-2",)


def test_case_that_holds_judges_all_its_clauses():
    passed = Outcome(Verdict.PASS).with_main_clauses("LIFE-5")
    assert passed.on(CASE).clauses == CLAUSES


def test_test_is_mainly_about_a_clause_that_it_judges():
    with pytest.raises(ValueError, match="LIFE-5 is none of the clauses"):
        clause("VIEW-1", mainly="LIFE-5")
