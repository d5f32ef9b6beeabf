"""Benchmarks in miniature, each in a folder of its own."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

DEADLINE = 120.0
SMALL = (
    "--channel=pipe",
    "--start-method=fork",
    "--strategy=file_descriptor",
    "--repeats=1",
)


@dataclass(frozen=True)
class Done:
    """A benchmark that has ended: its status, what it said, its figures, its rest."""

    status: int
    out: str
    err: str
    figures: dict
    left: list[str]


@pytest.fixture
def bench(tmp_path):
    """Run the command; modules in the test's folder can be imported by drivers."""
    out, temporary = tmp_path / "bench.json", tmp_path / "t"
    temporary.mkdir()
    environment = {"TMPDIR": str(temporary), "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "sharedtensor_conformance.cli", "bench"]

    def run(*options):
        done = subprocess.run(
            [*command, f"--json={out}", *SMALL, *options],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
        figures = json.loads(out.read_text()) if out.exists() else {}
        left = sorted(path.name for path in temporary.rglob("*"))
        return Done(done.returncode, done.stdout, done.stderr, figures, left)

    return run
