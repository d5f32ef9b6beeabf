"""Benchmarks in miniature, each with a folder for its files and its figures."""

import json
import tempfile
from dataclasses import dataclass

import pytest
from command import call, call_outside

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
def bench(tmp_path, monkeypatch):
    """Run the command; modules in the test's folder can be imported by drivers."""
    out, temporary = tmp_path / "bench.json", tmp_path / "t"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)  # it was found before

    def run(*options, outside=False):
        called = call_outside if outside else call
        done = called("bench", f"--json={out}", *SMALL, *options)
        figures = json.loads(out.read_text()) if out.exists() else {}
        left = sorted(path.name for path in temporary.rglob("*"))
        return Done(done.returncode, done.stdout, done.stderr, figures, left)

    return run
