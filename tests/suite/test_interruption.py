"""A run that is interrupted or killed leaves no process and no file behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from sharedtensor_conformance.harness.checks import wait_until
from sharedtensor_conformance.report import read_report


def _processes_of(folder: Path) -> list[str]:
    """Return the processes that have `folder` as the place of temporary files."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in environment or str(folder).encode() in command:
                found.append(command.replace(b"\0", b" ").decode())
    return found


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_leaves_nothing(suite, monkeypatch, how):
    temporary = suite.folder / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    report = suite.folder / "partial.jsonl"
    run = suite.start("--impl=numpy-copy", f"--report={report}", "--start-method=spawn")
    started = time.monotonic()
    assert wait_until(lambda: _lines(report) > 3, within=60), run.communicate()[0]
    os.kill(run.pid, how)
    run.communicate(timeout=60)
    assert time.monotonic() - started < 120
    assert wait_until(lambda: not _processes_of(temporary), within=20)
    assert wait_until(lambda: not list(temporary.glob("sts-*")), within=5)
    cases = read_report(report).cases
    assert len(cases) >= 3


def _lines(report: Path) -> int:
    return len(report.read_text().splitlines()) if report.exists() else 0
