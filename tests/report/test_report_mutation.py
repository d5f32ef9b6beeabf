"""Running mutants: what kills one, what does not, and what ends a run that hangs.

The runs of the suite are played by a small script, so that these tests judge the
machinery and not the suite.
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass

import pytest
import report_samples as samples
from report_samples import case
from sharedtensor_conformance.mutants import run as mutation
from sharedtensor_conformance.mutants.run import command_for, run_mutants


@dataclass(frozen=True)
class Fault:
    name: str
    clauses: tuple[str, ...] = ("GRAD-1",)
    histories: str = ""


def _run(monkeypatch, tmp_path, script, *mutants, jobs=1, limit=30.0, others=""):
    """Let `script` play each run; it finds the report's path in sys.argv[1]."""

    def command(mutant, report, which):
        return [sys.executable, "-c", script, str(report), mutant.name, which]

    monkeypatch.setattr(mutation, "command_for", command)
    announced = []
    outcomes = run_mutants(
        mutants or [Fault("a")],
        jobs=jobs,
        limit=limit,
        announce=announced.append,
        others=others,
    )
    assert sorted(o.name for o in announced) == [o.name for o in outcomes]
    return outcomes


def _reporting(tmp_path, *cases, then="", **options):
    """Return a script that leaves a report with these cases, and does `then`."""
    sample = samples.report(cases, **options)
    source = samples.write(tmp_path / "made.jsonl", samples.lines(sample))
    return (
        f"import shutil, sys, time\n"
        f"shutil.copyfile({str(source)!r}, sys.argv[1])\n{then}"
    )


@pytest.mark.parametrize("verdict", ["fail", "crash", "hang"])
def test_a_broken_case_of_its_clauses_kills_a_mutant(monkeypatch, tmp_path, verdict):
    script = _reporting(tmp_path, case("SHARE-1"), case("GRAD-1", verdict, id="it"))
    (outcome,) = _run(monkeypatch, tmp_path, script)
    assert (outcome.fate, outcome.by) == ("killed", "it")


@pytest.mark.parametrize(
    ("cases", "fate"),
    [
        ([case("GRAD-1")], "survived"),
        ([case("SHARE-1", "fail"), case("GRAD-1")], "survived"),
        ([case("GRAD-1", "not-run")], "survived"),
        ([case("GRAD-1", "error")], "unjudged"),
        ([case("GRAD-1", "blocked")], "unjudged"),
    ],
)
def test_nothing_else_kills_a_mutant(monkeypatch, tmp_path, cases, fate):
    (outcome,) = _run(monkeypatch, tmp_path, _reporting(tmp_path, *cases))
    assert outcome.fate == fate


def test_a_mutant_with_which_no_process_starts_says_why(monkeypatch, tmp_path):
    blocked = case("GRAD-1", "blocked", evidence="in the smoke test: TypeError")
    (outcome,) = _run(monkeypatch, tmp_path, _reporting(tmp_path, blocked))
    assert (outcome.fate, outcome.note) == ("unjudged", "in the smoke test: TypeError")


def test_a_run_without_a_report_says_its_last_words(monkeypatch, tmp_path):
    script = "print('first'); print('ERROR: no such option')"
    (outcome,) = _run(monkeypatch, tmp_path, script)
    assert (outcome.fate, outcome.note) == ("unjudged", "ERROR: no such option")
    assert "unjudged  a  [GRAD-1]" in str(outcome)


def test_a_run_that_was_cut_short_judges_nothing(monkeypatch, tmp_path):
    script = _reporting(tmp_path, case("GRAD-1"), missing=3)
    assert _run(monkeypatch, tmp_path, script)[0].fate == "unjudged"


def test_a_run_goes_on_where_another_clause_broke_first(monkeypatch, tmp_path):
    first = _reporting(tmp_path, case("SHARE-1", "fail"), missing=1)
    (tmp_path / "made.jsonl").rename(tmp_path / "first.jsonl")
    first = first.replace("made.jsonl", "first.jsonl")
    every = _reporting(tmp_path, case("SHARE-1", "fail"), case("GRAD-1", "fail"))
    script = f"import sys\nexec({first!r} if sys.argv[3] == 'own' else {every!r})"
    assert _run(monkeypatch, tmp_path, script)[0].fate == "killed"


def test_a_run_that_never_ends_is_ended(monkeypatch, tmp_path):
    script = _reporting(tmp_path, case("GRAD-1"), missing=1, then="time.sleep(600)")
    (outcome,) = _run(monkeypatch, tmp_path, script, limit=1.0)
    assert (outcome.fate, outcome.note) == ("unjudged", "the run took longer than 1 s")
    assert outcome.seconds < 60


def test_each_run_has_an_empty_folder_of_its_own(monkeypatch, tmp_path):
    script = "import os; print(os.getcwd(), os.listdir())"
    first, second = _run(monkeypatch, tmp_path, script, Fault("a"), Fault("b"), jobs=2)
    assert first.note.endswith(" []")
    assert second.note.endswith(" []")
    assert first.note != second.note


def test_two_jobs_run_at_the_same_time(monkeypatch, tmp_path):
    # Each waits for the file of the other, so one after the other cannot end in time.
    script = (
        f"import pathlib, sys, time\nhere = pathlib.Path({str(tmp_path)!r})\n"
        "name = sys.argv[2]\n(here / name).touch()\n"
        "other = here / {'a': 'b', 'b': 'a'}[name]\n"
        "while not other.exists(): time.sleep(0.01)\nprint('met')"
    )
    met = _run(monkeypatch, tmp_path, script, Fault("a"), Fault("b"), jobs=2, limit=20)
    assert [outcome.note for outcome in met] == ["met", "met"]


def test_an_interruption_ends_the_runs_in_progress(monkeypatch, tmp_path):
    script = "import sys, time\nif sys.argv[2] == 'b': time.sleep(600)"

    def interrupt(outcome):
        raise KeyboardInterrupt

    def command(mutant, report, which):
        return [sys.executable, "-c", script, str(report), mutant.name]

    monkeypatch.setattr(mutation, "command_for", command)
    threads = set(threading.enumerate())
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_mutants([Fault("a"), Fault("b")], jobs=2, limit=300, announce=interrupt)
    assert time.monotonic() - started < 60
    assert set(threading.enumerate()) <= threads


def test_the_command_judges_the_clauses_of_the_mutant(tmp_path):
    command = command_for(Fault("drops", ("GRAD-1", "GRAD-2")), tmp_path / "r")
    assert command[1:5] == ["-m", "pytest", "--pyargs", "sharedtensor_conformance"]
    assert "--no-repetition" in command
    assert command[-7:] == [
        "--impl=mutant:drops",
        "--no-expectations",
        f"--report={tmp_path / 'r'}",
        "-x",
        "--strict",
        "--clause=GRAD-1",
        "--clause=GRAD-2",
    ]


@pytest.mark.parametrize("others", ["whole", "one-per-clause"])
def test_the_other_clauses_that_broke_are_named(monkeypatch, tmp_path, others):
    cases = (
        case("GRAD-1", "fail", id="own"),
        case("GRAD-1 GRAD-2", "fail", id="both"),
        case("GRAD-2", "crash", id="other"),
        case("SHARE-1", id="held"),
    )
    script = _reporting(tmp_path, *cases)
    (outcome,) = _run(monkeypatch, tmp_path, script, others=others)
    assert (outcome.fate, outcome.also) == ("killed", ("GRAD-2",))
    (outcome,) = _run(monkeypatch, tmp_path, script)
    assert outcome.also == ()


def test_a_mutant_is_not_judged_if_its_run_of_the_others_comes_to_nothing(
    monkeypatch, tmp_path
):
    own = _reporting(tmp_path, case("GRAD-1", "fail"))
    script = f"import sys\nif sys.argv[3] != 'own': sys.exit('no')\n{own}"
    (outcome,) = _run(monkeypatch, tmp_path, script, others="one-per-clause")
    assert (outcome.fate, outcome.note) == ("unjudged", "no")


@pytest.mark.parametrize(
    ("which", "option"),
    [("whole", "--start-method=fork"), ("one-per-clause", "--one-per-clause")],
)
def test_a_run_of_the_others_is_not_limited_to_the_mutant_s_clauses(
    tmp_path, which, option
):
    command = command_for(Fault("drops"), tmp_path / "r", which)
    assert option in command
    assert "-x" not in command
    assert "--clause=GRAD-1" not in command
