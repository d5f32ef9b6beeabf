"""A run that is interrupted or killed leaves no process and no file behind.

Its report holds the cases that were judged until then, and says that it is cut short.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from sharedtensor_conformance.harness.checks import wait_until
from sharedtensor_conformance.report.records import Report, read_report

BOUND = 60.0
"""Seconds in which a run that is interrupted has ended, and all that it started."""

HANGING = ("--impl=patients:never_late", "--clause=SHARE-3", "--start-method=fork")
RUNNING = ("--impl=numpy-copy", "--clause=SHARE-3", "--clause=CHAN-1")


def _lines(report: Path) -> int:
    return len(report.read_text().splitlines()) if report.exists() else 0


def _await(run, ready) -> None:
    """Wait until the run has come so far; else end it and say what it printed."""
    if not wait_until(ready, BOUND):
        run.terminate()
        pytest.fail(run.communicate()[0])


def _interrupt(ward, run, ready, signals) -> Report:
    """Send the signals when the run is `ready`; return its report. Nothing is left."""
    _await(run, ready)
    for number in signals:
        os.kill(run.pid, number)  # the ward, which passes it on
    done, left = ward.end(run)
    assert done.status not in (None, 0), done.text
    assert (left.processes, left.segments) == ([], []), done.text
    assert [name for name in left.files if name.startswith("sts-")] == []
    return done.report


SIGNALS = {
    "INT": [signal.SIGINT],
    "TERM": [signal.SIGTERM],
    "INT, INT": [signal.SIGINT, signal.SIGINT],
    "TERM, INT": [signal.SIGTERM, signal.SIGINT],
}


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
@pytest.mark.parametrize("signals", ["INT", "TERM"])
def test_interrupted_run_leaves_a_report_and_nothing_else(ward, signals, workers):
    run = ward.start(*RUNNING, workers)
    report = _interrupt(ward, run, lambda: _lines(ward.report) > 3, SIGNALS[signals])
    assert len(report.cases) >= 3


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
@pytest.mark.parametrize("signals", SIGNALS)
def test_run_that_waits_for_a_patient_can_be_interrupted(ward, signals, workers):
    run = ward.start(*HANGING, workers)
    hangs = (ward.folder / "hangs").exists
    report = _interrupt(ward, run, hangs, SIGNALS[signals])
    assert not report.complete


def test_keeper_that_was_stopped_goes_on_when_the_run_has_gone(ward):
    run = ward.start("--impl=patients:stops_its_keeper", "--clause=SHARE-3")
    report = _interrupt(ward, run, (ward.folder / "stopped").exists, [signal.SIGTERM])
    assert not report.complete


def test_killed_run_leaves_a_report_and_nothing_else(suite, monkeypatch, tmp_path):
    temporary = suite.folder / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    report = suite.folder / "partial.jsonl"
    run = suite.start(*RUNNING, f"--report={report}")
    assert wait_until(lambda: _lines(report) > 3, BOUND), run.communicate()[0]
    run.kill()
    run.communicate(timeout=BOUND)
    assert wait_until(lambda: not _processes_of(temporary), BOUND)
    assert wait_until(lambda: not list(temporary.glob("sts-*")), BOUND)
    assert len(read_report(report).cases) >= 3


def _processes_of(folder: Path) -> list[str]:
    """Return the processes that have `folder` as the place of temporary files."""
    told = {pid: _told(pid, "environ") + _told(pid, "cmdline") for pid in _pids()}
    return [pid for pid, text in told.items() if str(folder).encode() in text]


def _pids() -> list[str]:
    return [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _told(pid: str, what: str) -> bytes:
    try:
        return Path("/proc", pid, what).read_bytes()
    except OSError:
        return b""


def test_no_command_line_tells_the_environment_of_the_run(ward):
    secret = f"secret-of-{ward.folder.name}"
    run = ward.start(*HANGING, SOME_TOKEN=secret)
    _await(run, (ward.folder / "hangs").exists)
    knowing = [pid for pid in _pids() if secret.encode() in _told(pid, "environ")]
    telling = [pid for pid in _pids() if secret.encode() in _told(pid, "cmdline")]
    run.send_signal(signal.SIGINT)
    ward.end(run)
    assert len(knowing) > 2  # the ward, the suite, and those below it
    assert telling == []
