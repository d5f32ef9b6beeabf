"""A run that is interrupted or killed leaves no process and no file behind.

Its report holds the cases that were judged until then, and says that it is cut short.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM, Signals

import pytest
from sharedtensor_conformance.harness.kernel.process_tree import prolonged, wait_until
from sharedtensor_conformance.report.records import Report
from suites import Done, Run, entry

BOUND = 60.0
"""Seconds in which a run has come so far, or is given up."""

HANGING = (
    *("--impl=faulty_implementations:never_late", "--start-method=fork"),
    "--clause=SHARE-3",
)
RUNNING = (
    *("--impl=numpy-copy", "--start-method=fork"),
    *("--clause=SHARE-3", "--clause=CHAN-1"),
)


def await_(run: Run, ready: Callable[[], bool]) -> None:
    """Wait until the run has come so far; else end it and say what it printed."""
    if not wait_until(ready, prolonged(BOUND)):
        run.send(SIGKILL)
        pytest.fail(run.end().text)


def interrupt(run: Run, ready: Callable[[], bool], *signals: Signals) -> Report:
    """Send the signals when the run is `ready`; return its report. Nothing is left."""
    await_(run, ready)
    for number in signals:
        run.send(number)
    done = run.end()
    assert done.status not in (None, 0), done.text
    assert_nothing_is_left(done)
    return done.report


def assert_nothing_is_left(done: Done) -> None:
    """Assert that no process, segment or folder of a stage is left of a run."""
    assert (done.left.processes, done.left.segments) == ([], []), done.text
    assert [name for name in done.left.files if name.startswith("sts-")] == []


def has_judged_some(run: Run) -> Callable[[], bool]:
    """Return whether the report has the cases that `interrupt`'s callers look for."""
    return lambda: run.report.exists() and run.report.read_bytes().count(b"\n") > 3


@pytest.mark.parametrize(("number", "workers"), [(SIGTERM, "-n2"), (SIGKILL, "-n0")])
def test_run_that_is_ended_leaves_a_report_and_nothing_else(suite, number, workers):
    run = suite.start(*RUNNING, workers)
    report = interrupt(run, has_judged_some(run), number)
    assert len(report.cases) >= 3
    assert not report.complete


@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_interrupted_run_leaves_a_report_that_is_silent_on_what_it_did_not_reach(
    suite, workers
):
    # It holds, so it would be stale; and it is judged late.
    expectations = suite.expecting(entry("VIEW-7", cause="None: it holds."))
    all_of_it = ("--impl=miniatures:plain", expectations)
    run = suite.start(*all_of_it, workers, "-p", "brief_shrinking")
    await_(run, has_judged_some(run))
    run.send(SIGINT)
    done = run.end()
    summary = done.report.summary
    assert_nothing_is_left(done)
    assert len(done.cases) >= 3
    assert done.status == 2, done.text
    assert (summary.complete, summary.stale) == (False, ())
    assert "interrupt" in summary.stopped
    assert set(summary.clauses) == {id for case in done.cases for id in case.clauses}
    assert "judged by no case" not in done.text
    came = f"cut short after {len(done.cases)} of {done.report.run.planned} planned"
    assert came in " ".join(done.text.split())


def test_run_that_is_interrupted_where_python_knows_no_line_is_judged(suite):
    done = suite.start(*RUNNING, "-n0", "-p", "interrupt_without_line").end()
    assert done.status == 2, done.text
    assert "Traceback" not in done.text
    assert "interrupt" in done.report.summary.stopped
    assert len(done.cases) == 1


@pytest.mark.parametrize(
    ("signals", "workers"),
    [
        ([SIGINT], "-n0"),
        ([SIGTERM, SIGINT], "-n0"),
        ([SIGINT, SIGINT], "-n1"),
    ],
)
def test_run_that_waits_for_a_process_can_be_interrupted(suite, signals, workers):
    run = suite.start(*HANGING, workers)
    report = interrupt(run, (suite.folder / "hangs").exists, *signals)
    assert not report.complete


def test_supervisor_that_was_stopped_goes_on_when_the_run_has_gone(suite):
    stops = "--impl=faulty_implementations:stops_its_supervisor"
    run = suite.start(stops, "--clause=SHARE-3")
    report = interrupt(run, (suite.folder / "stopped").exists, SIGTERM)
    assert not report.complete


@pytest.mark.parametrize("number", [SIGTERM, SIGKILL])
def test_run_that_ends_while_the_template_imports_leaves_nothing(suite, number):
    run = suite.start("--impl=noted_imports:hanging", "--clause=SHARE-3")
    await_(run, (suite.folder / "importing").exists)
    run.send(number)
    done = run.end()
    assert done.status == -number, done.text
    assert_nothing_is_left(done)


def told(what: str) -> dict[str, bytes]:
    """Return what the processes of this machine tell about themselves, by pid."""
    found = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                found[process.name] = (process / what).read_bytes()
    return found


def test_no_command_line_tells_the_environment_of_the_run(suite):
    secret = f"secret-of-{suite.folder.name}"
    run = suite.start(*HANGING, SOME_TOKEN=secret)
    await_(run, (suite.folder / "hangs").exists)
    knowing = [text for text in told("environ").values() if secret.encode() in text]
    telling = [text for text in told("cmdline").values() if secret.encode() in text]
    run.send(SIGINT)
    run.end()
    assert len(knowing) > 1  # those below the suite
    assert telling == []
