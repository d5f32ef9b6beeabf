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
    """A run that has ended: what it said, and its record."""

    said: str
    record: dict


@pytest.fixture
def run(tmp_path):
    """Run a script with its record and its temporary files in the test's folder.

    It has to end with a status, and to leave nothing.
    """
    out, temporary = tmp_path / "record.json", tmp_path / "t"
    temporary.mkdir()

    def run_script(script, *options, status=0):
        done = subprocess.run(
            [sys.executable, SCRIPTS / script, f"--out={out}", *options],
            env={**os.environ, "TMPDIR": str(temporary)},
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
        said = done.stdout + done.stderr
        assert done.returncode == status, said
        assert sorted(path.name for path in temporary.rglob("*")) == []
        return Done(said, json.loads(out.read_text()) if out.exists() else {})

    return run_script


@pytest.fixture
def scripts(monkeypatch):
    """Let the test import the scripts."""
    monkeypatch.syspath_prepend(SCRIPTS)


@pytest.fixture
def needs(scripts):
    """Skip the test where this machine permits none of what it is about."""
    import hostile
    from sandbox import Sandbox

    def skip_without(*hardships):
        with Sandbox() as sandbox:
            impossible = hostile.impossible_here(sandbox.has_private_shm)
        for name in hardships:
            if name in impossible:
                pytest.skip(f"{name}: {impossible[name]}")

    return skip_without
