"""Runs the suite as a user does: in a process of its own, in an empty folder."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from sharedtensor.cuda import simulated
from sharedtensor_conformance.report.records import Case, Report, read_report

HERE = Path(__file__).parent
LIMIT = 150.0
"""Seconds after which a run has hung, whatever else it does."""

# The plugin of Hypothesis imports all of it at the end of each run. The sandbox has
# imported the suite before pytest could rewrite its assertions: it has none.
SUITE = "sharedtensor_conformance"
OPTIONS = (
    *("--pyargs", "-q"),
    *("-p", "no:cacheprovider", "-p", "no:hypothesispytest"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)
COMMAND = (sys.executable, "-m", "pytest", SUITE, *OPTIONS)


def environment() -> dict[str, str]:
    """Return the environment of a run, in which this folder's modules are found.

    A test of the reference in this process may have set a variable that names its
    simulated device. The processes of a run have another one.
    """
    path = [os.environ.get("PYTHONPATH"), str(HERE)]
    found = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    found.pop(simulated.VARIABLE, None)
    return found


@dataclass(frozen=True)
class Left:
    """What the suite left of a run: nothing, if it is as it should be."""

    processes: list[str]
    files: list[str]
    segments: list[str]


NOTHING_LEFT = Left([], [], [])


@dataclass(frozen=True)
class Done:
    """A run of the suite that has ended; its status is None where it had hung."""

    status: int | None
    text: str
    file: Path
    left: Left

    @property
    def report(self) -> Report:
        """The report that it wrote."""
        return read_report(self.file)

    @property
    def cases(self) -> tuple[Case, ...]:
        """The cases that it judged."""
        return tuple(self.report.cases)

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdicts by case."""
        return {case.id: str(case.verdict) for case in self.cases}


class Run:
    """A run of the suite that goes on."""

    def __init__(self, suite: Suite, pid: int, report: Path, told: TextIO) -> None:
        self.suite = suite
        self.pid = pid
        self.report = report
        self.told = told

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def end(self) -> Done:
        """Wait for the end; return how it went, and what it left."""
        with self.told:
            end = json.loads(self.told.readline())
        left = Left(end["left"], self.suite.files(), self.suite.segments())
        text = self.suite.output.read_text(errors="backslashreplace")
        self.suite.output.unlink()
        return Done(end["status"], text, self.report, left)


class Suite:
    """Calls ``pytest --pyargs sharedtensor_conformance`` in a sandbox.

    Its folder is the place of all temporary files, and its name is short: the paths of
    sockets may not be long. The implementations of this folder are at hand.
    """

    def __init__(self, server: Path, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.temporary = folder / "t"
        self.temporary.mkdir()
        self.output = folder / "output"
        self.runs = 0

    def start(self, *options: str, tests: str = SUITE, **variables: str) -> Run:
        """Start a run of `tests` with these options, and variables of its environment.

        The tests are named as pytest's ``--pyargs`` has it.
        """
        self.runs += 1
        report = self.folder / f"report-{self.runs}.jsonl"
        own = {"TMPDIR": str(self.temporary), "SANDBOX": str(self.folder)}
        request = {
            "options": [tests, *OPTIONS, f"--report={report}", *options],
            "folder": str(self.folder),
            "output": str(self.output),
            "environment": environment() | own | variables,
            "limit": LIMIT,
        }
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.server))
            told = connection.makefile("rw")
        print(json.dumps(request), file=told, flush=True)
        return Run(self, json.loads(told.readline()), report, told)

    def __call__(self, *options: str, tests: str = SUITE, **variables: str) -> Done:
        """Run to the end."""
        return self.start(*options, tests=tests, **variables).end()

    def expecting(self, *entries: str) -> str:
        """Return the option for a file of known deviations with these entries."""
        file = self.folder / "expected.toml"
        file.write_text("".join(entries))
        return f"--expectations={file}"

    def files(self) -> list[str]:
        """Return the temporary files that are there."""
        return sorted(path.name for path in self.temporary.iterdir())

    def segments(self) -> list[str]:
        """Return, and remove, what the implementation has named in ``/dev/shm``."""
        found = []
        with suppress(FileNotFoundError):
            for name in (self.folder / "segments").read_text().split():
                with suppress(FileNotFoundError):
                    Path("/dev/shm", name).unlink()
                    found.append(name)
        return found


def entry(clause: str, outcome: str = "fail", **keys: object) -> str:
    """Return an entry of a file of known deviations."""
    known = {"clause": clause, "outcomes": [outcome], "cause": "it copies"} | keys
    lines = (f"{key} = {json.dumps(value)}\n" for key, value in known.items())
    return f"[[expect]]\n{''.join(lines)}date = 2026-11-21\n"


@contextmanager
def serving(path: Path) -> Iterator[None]:
    """Have a sandbox that listens at `path`."""
    with subprocess.Popen(
        [sys.executable, HERE / "sandbox.py", path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"\n", "the sandbox has not started"
        yield
