"""Runs the suite as a user does: in a process of its own, in an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from sharedtensor_conformance.report import Report, read_report

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Done:
    """A run of the suite that has ended."""

    status: int
    text: str
    file: Path

    @property
    def report(self) -> Report:
        """The report that it wrote."""
        return read_report(self.file)

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdicts by case."""
        return {case.id: str(case.verdict) for case in self.report.cases}


class Suite:
    """Calls ``pytest --pyargs sharedtensor_conformance``, the miniatures at hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = 0

    def command(self, *options: str) -> list[str]:
        """Return the command line."""
        suite = ("-m", "pytest", "--pyargs", "sharedtensor_conformance")
        return [sys.executable, *suite, "-q", "-p", "no:cacheprovider", *options]

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Start a run."""
        return subprocess.Popen(
            self.command(*options),
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(HERE)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __call__(self, *options: str) -> Done:
        """Run to the end."""
        self.runs += 1
        file = self.folder / f"report-{self.runs}.jsonl"
        process = self.start(f"--report={file}", *options)
        text, _ = process.communicate(timeout=240)
        return Done(process.returncode, text, file)


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    """The suite, to be called with its options."""
    return Suite(tmp_path)
