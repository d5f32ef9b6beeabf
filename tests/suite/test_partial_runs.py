"""A run of a part of the suite is judged as a part, whatever made it one.

What pytest selects by its own options, and what it no longer runs when it stops, is as
much a selection as that of the suite's options.
"""

from __future__ import annotations

import re

import pytest
from sharedtensor_conformance.adapters.loader import load_implementation
from sharedtensor_conformance.cli import main
from sharedtensor_conformance.plugin.enumeration import all_cases
from sharedtensor_conformance.plugin.matrix import (
    Selection,
    matches,
    may_match,
)
from suites import entry

PLAIN = "--impl=miniatures:plain"
TEST = "test_receiver_finds_values_shape_and_dtype"


@pytest.fixture
def expectations(suite):
    """The option for an entry that is stale where all is judged, but nowhere here."""
    return suite.expecting(entry("VIEW-7", cause="None: it holds."))


def collected(text):
    """Return the ids of cases in the output of --collect-only."""
    return re.findall(r"^\S*/(test_\w+\.py::\S+)$", text, re.MULTILINE)


def assert_partial(done, told):
    """Assert that the run says that it is a part, and was judged as one."""
    selection, summary = done.report.run.selection, done.report.summary
    assert (selection.full, summary.conforms, summary.stale) == (False, False, ())
    assert selection.left_out_by == (told,)
    chosen = done.report.run.planned + selection.left_out
    text = " ".join(done.text.split())
    assert (
        f"Of {chosen} chosen cases, {selection.left_out} were left out by {told}."
        in text
    )
    assert "judged by no case" not in text
    assert set(summary.clauses) == {id for case in done.cases for id in case.clauses}


def test_expression_leaves_cases_out(suite, expectations):
    """Of workers, too: the other options are tried without any."""
    done = suite(PLAIN, expectations, "-k", TEST, "-n1")
    assert_partial(done, f"-k {TEST!r}")
    assert done.status == 0, done.text


def test_mark_leaves_cases_out(suite, expectations):
    done = suite(PLAIN, expectations, "-m", "parametrize")
    assert_partial(done, "-m 'parametrize'")
    assert done.status == 1  # the cases with this mark need what is not claimed
    said = f"does not pass: nothing was judged ({len(done.cases)} unsupported)"
    assert said in " ".join(done.text.split())


def test_module_leaves_cases_out(suite, expectations):
    module = "sharedtensor_conformance.chapters.test_train"
    done = suite(PLAIN, expectations, tests=module)
    assert_partial(done, module)
    assert {case.id.partition("::")[0] for case in done.cases} == {"test_train.py"}


def test_test_leaves_cases_out(suite, expectations):
    test = f"sharedtensor_conformance.chapters.test_share::{TEST}"
    done = suite(PLAIN, expectations, tests=test)
    assert_partial(done, test)
    assert done.cases


def test_deselected_cases_are_left_out_of_chosen_clauses(suite, tmp_path, capsys):
    chosen = (PLAIN, "--clause=SHARE-3")
    every = suite(*chosen, "--collect-only").text
    first, *others = collected(every)
    node = next(line for line in every.splitlines() if line.endswith(first))
    done = suite(*chosen, f"--deselect={node}")
    assert done.report.run.selection.left_out == 1
    assert set(done.verdicts) == set(others)
    own = f"--expectations={tmp_path / 'plain.toml'}"
    assert main(["expectations", "update", str(done.file), own]) == 4
    assert "lacks 1 of the selected cases" in capsys.readouterr().err


def test_last_failed_cases_are_a_part(suite):
    chosen = (PLAIN, "--clause=SHARE-1", "--clause=SHARE-3", "-p", "cacheprovider")
    first, again = suite(*chosen), suite(*chosen, "--lf")
    failed = {case.id for case in first.cases if case.verdict == "fail"}
    assert failed
    assert set(again.verdicts) == failed, again.text
    assert again.report.run.selection.left_out_by == ("--last-failed",)
    assert "left out by --last-failed." in again.text


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_run_that_stops_at_a_failure_is_judged_by_what_it_judged(
    suite, expectations, workers
):
    done = suite(PLAIN, expectations, "-x", workers, "-p", "brief_shrinking")
    summary = done.report.summary
    assert (summary.complete, summary.stale) == (False, ())
    assert re.fullmatch(r"stopping after \d failures", summary.stopped)
    assert set(summary.clauses) == {id for case in done.cases for id in case.clauses}
    assert "judged by no case" not in done.text
    assert f"({summary.stopped})" in " ".join(done.text.split())
    assert done.status == 1


def test_option_that_leaves_nothing_out_makes_no_part(suite):
    done = suite(PLAIN, "--clause=SHARE-3", "-k", "not no_such_test")
    assert done.report.run.selection.left_out == 0
    assert done.report.run.selection.left_out_by == ()
    assert "left out" not in done.text


PATTERNS = {
    "test_a.py::test_one[fork-pipe]": ("test_a.py::test_one",),
    "test_a.py::test_one*": ("test_a.py::test_one", "test_a.py::test_one_more"),
    "test_a.py::test_one[*": ("test_a.py::test_one",),
    "test_?.py::test_two[fork]": ("all",),
    "*fork*": ("all",),
    "test_a.py::test_on": (),
    "": (),
}
TESTS = ("test_a.py::test_one", "test_a.py::test_one_more", "test_b.py::test_two")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_test_is_left_out_where_none_of_its_cases_can_be_chosen(pattern):
    found = tuple(test for test in TESTS if may_match(test, pattern))
    assert found == (TESTS if PATTERNS[pattern] == ("all",) else PATTERNS[pattern])
    for test in TESTS:
        ids = (f"{test}[{parameters}]" for parameters in ("fork", "fork-pipe"))
        assert not any(matches(id, pattern) for id in ids) or test in found


@pytest.mark.parametrize(
    ("pattern", "chosen"), [("test_share.py::test_r*[*-fork-*pipe*", 8), ("*-ring", 0)]
)
def test_enumeration_has_all_cases_that_patterns_choose(pattern, chosen):
    declared = load_implementation("reference")
    every = [case.id for case in all_cases(Selection(), declared)]
    some = [case.id for case in all_cases(Selection(cases=(pattern,)), declared)]
    wanted = [id for id in every if matches(id, pattern)]
    assert wanted == [id for id in some if matches(id, pattern)]
    assert len(wanted) >= chosen
    assert len(some) < len(every) or pattern.startswith("*")
