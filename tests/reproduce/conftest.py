"""What the tests of `reproduce` share: reports of failing cases, and the command."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import report_samples as samples
from command import call
from report_samples import case

HERE = Path(__file__).parent
LIMIT = 300


@pytest.fixture
def report_of(tmp_path):
    """Return a function that writes the report of cases with a verdict."""

    def write(implementation, *cases, verdict="fail", evidence="", options=()):
        judged = [
            replace(case("SHARE-1", verdict, id=id, evidence=evidence), test=test)
            for id in cases
            for test in [id.partition("[")[0]]
        ]
        given = (f"--impl={implementation}", *options)
        made = samples.report(judged, full=False, options=given)
        return samples.write(tmp_path / "report.jsonl", samples.lines(made))

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
        with tempfile.TemporaryDirectory(prefix="r") as folder:  # short: for sockets
            done = subprocess.run(
                [sys.executable, "-I", str(file)],
                env=os.environ | {"TMPDIR": folder} | variables,
                capture_output=True,
                text=True,
                timeout=LIMIT,
            )
            assert os.listdir(folder) == []
        return done

    return run
