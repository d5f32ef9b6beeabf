"""Soak runs in miniature, each in a process and a folder of its own."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "evidence" / "soak"
DEADLINE = 120.0


@dataclass(frozen=True)
class Done:
    """A run that has ended: its status, what it said, its record, what it left."""

    status: int
    said: str
    record: dict
    left: list[str]


@pytest.fixture
def run(tmp_path):
    """Run a script with its record and its temporary files in the test's folder."""
    out, temporary = tmp_path / "record.json", tmp_path / "t"
    temporary.mkdir()

    def run_script(script, *options):
        done = subprocess.run(
            [sys.executable, SCRIPTS / script, f"--out={out}", *options],
            env={**os.environ, "TMPDIR": str(temporary)},
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
        record = json.loads(out.read_text()) if out.exists() else {}
        left = sorted(path.name for path in temporary.rglob("*"))
        return Done(done.returncode, done.stdout + done.stderr, record, left)

    return run_script


@pytest.fixture
def scripts(monkeypatch):
    """Let the test import the scripts."""
    monkeypatch.syspath_prepend(SCRIPTS)
