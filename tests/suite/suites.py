"""Runs the suite as a user does: in a process of its own, in an empty folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sharedtensor_conformance.report.records import Report, read_report

HERE = Path(__file__).parent


def environment() -> dict[str, str]:
    """Return the environment of a run, in which this folder's modules are found."""
    path = [os.environ.get("PYTHONPATH"), str(HERE)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}


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
        suite = ("-m", "pytest", "--pyargs", "sharedtensor_conformance", "-q")
        # The plugin of Hypothesis imports all of it at the end of each run.
        without = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
        return [sys.executable, *suite, *without, *options]

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Start a run."""
        return subprocess.Popen(
            self.command(*options),
            cwd=self.folder,
            env=environment(),
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


@dataclass(frozen=True)
class Left:
    """What the suite left of a run: nothing, if it is as it should be."""

    processes: list[str]
    files: list[str]
    segments: list[str]


class Ward:
    """Runs the suite on a patient, below a process that nothing gets away from.

    Its folder is the place of all temporary files, and its name is short: the paths of
    sockets may not be long.
    """

    LIMIT = 150.0
    """Seconds after which a run has hung, whatever else it does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = folder / "t"
        self.report = folder / "report.jsonl"
        self.temporary.mkdir()

    def start(self, *options: str, **variables: str) -> subprocess.Popen[str]:
        """Start a run; signals to the process returned go on to the suite."""
        run = Suite(self.folder).command(f"--report={self.report}", *options)
        own = {"TMPDIR": str(self.temporary), "WARD": str(self.folder)}
        return subprocess.Popen(
            [sys.executable, HERE / "ward.py", self._answer, str(self.LIMIT), *run],
            cwd=self.folder,
            env=environment() | own | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="backslashreplace",
        )

    def end(self, run: subprocess.Popen[str]) -> tuple[Done, Left]:
        """Wait for the run; return how it went, and what it left."""
        text, _ = run.communicate(timeout=self.LIMIT + 60)
        answer = json.loads(self._answer.read_text())
        files = sorted(path.name for path in self.temporary.iterdir())
        left = Left(answer["left"], files, self._segments())
        return Done(answer["status"], text, self.report), left

    def __call__(self, *options: str, **variables: str) -> tuple[Done, Left]:
        """Run to the end."""
        return self.end(self.start(*options, **variables))

    @property
    def _answer(self) -> Path:
        return self.folder / "answer"

    def _segments(self) -> list[str]:
        """Return, and remove, the files in ``/dev/shm`` that a patient has named."""
        found = []
        with suppress(FileNotFoundError):
            for name in (self.folder / "segments").read_text().split():
                with suppress(FileNotFoundError):
                    Path("/dev/shm", name).unlink()
                    found.append(name)
        return found
