"""What the tests of `reproduce` share: reports of failing cases, and the command."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from command import call
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.report.records import (
    Case,
    Machine,
    ReportWriter,
    Run,
    Selection,
    SpecRecord,
    Subject,
)
from sharedtensor_conformance.report.verdicts import Verdict

HERE = Path(__file__).parent
LIMIT = 300


def run_of(implementation, planned, options=()):
    """Return the first line of the report of a run with more options."""
    axes = ("default",), ("fork", "spawn"), ("float32",), ("pipe",), ("cpu",)
    return Run(
        Subject("sample", "1.0", ("core",), *axes),
        suite="0.1.0",
        spec=SpecRecord.of(load_clauses()),
        machine=Machine("3.11.9", "x86_64", "6.1", 2, True, False),
        selection=Selection(full=False, options=(f"--impl={implementation}", *options)),
        planned=planned,
        started="2026-11-21T02:00:00Z",
    )


@pytest.fixture
def report_of(tmp_path):
    """Return a function that writes the report of cases with a verdict."""

    def write(implementation, *cases, verdict="fail", evidence="", options=()):
        file = tmp_path / "report.jsonl"
        with ReportWriter(file) as writer:
            writer.write(run_of(implementation, len(cases), options))
            for id in cases:
                test = id.partition("[")[0]
                judged = Verdict(verdict)
                writer.write(Case(id, test, ("SHARE-1",), judged, evidence=evidence))
        return file

    return write


@pytest.fixture
def reproduce(tmp_path, monkeypatch):
    """Return a function that calls the command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
    return partial(call, "reproduce")


@pytest.fixture
def run_program(tmp_path):
    """Return a function that runs a program as anybody would, far from the suite."""

    def run(program, **variables):
        file = tmp_path / "elsewhere" / "program.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(program)
        return subprocess.run(
            [sys.executable, "-I", str(file)],
            env=os.environ | variables,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )

    return run
