"""Benchmarks in miniature, each with a folder for its files and its figures."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = ("--channel=pipe", "--start-method=fork", "--strategy=file_descriptor")
DEADLINE = 120.0


@dataclass(frozen=True)
class Done:
    """A benchmark that has ended: its status, what it said, its figures, its rest."""

    status: int
    out: str
    err: str
    results: list[dict]
    left: list[str]


@pytest.fixture
def bench(tmp_path):
    """Run the program; modules in the test's folder can be imported by drivers."""
    out, temporary = tmp_path / "bench.json", tmp_path / "t"
    temporary.mkdir()
    path = filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])
    variables = {"TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join(path)}

    def run(*options, **more):
        command = [sys.executable, "-m", "bench", f"--json={out}", "--repeats=1"]
        done = subprocess.run(
            [*command, *SMALL, *options],
            cwd=ROOT,
            env=os.environ | variables | more,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
        text = out.read_text() if out.exists() else ""
        results = json.loads(text)["results"] if text else []
        left = sorted(path.name for path in temporary.rglob("*"))
        return Done(done.returncode, done.stdout, done.stderr, results, left)

    return run


@pytest.fixture
def call(monkeypatch, tmp_path):
    """Call the program in this process; return its status. Nothing is left of it."""
    from bench.__main__ import main

    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def run(*options):
        with pytest.raises(SystemExit) as ended:
            main(options)
        return ended.value.code

    yield run
    assert list(tmp_path.iterdir()) == []
