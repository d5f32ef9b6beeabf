"""Runs a case to record its events, and runs the generated program to check it.

A program runs under a supervisor, like the processes of the suite. The supervisor ends
all processes that the program started, and removes what they left behind. If the system
permits it, the program has a private ``/dev/shm``.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.api import suite_command
from sharedtensor_conformance.bounded_run import Result, run
from sharedtensor_conformance.harness.case.checks import wait_until
from sharedtensor_conformance.harness.supervisor import stage_folder
from sharedtensor_conformance.harness.supervisor.supervisor_client import (
    Supervisor,
    job_of,
)
from sharedtensor_conformance.report.records import Report, ReportError, read_report
from sharedtensor_conformance.reproduce import recording
from sharedtensor_conformance.reproduce.sources import Unreplayable
from sharedtensor_conformance.sanitize import printable

OPTIONS = (
    *("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", recording.__name__),
    *("--no-repetition", "--no-expectations"),
)
PROGRAM = "program.py"
"""The name of the file in which a program is run."""

_OWN_ERROR = re.compile(
    rf'^ +File "[^"]*/{re.escape(PROGRAM)}", line .*\n'  # the last line of the stack
    r"(?: {4}.*\n)*"  # the source of that line, and marks below it
    r"((?:Name|UnboundLocal|Syntax|Indentation|Tab)Error\b.*)",
    re.MULTILINE,
)
"""An exception that an error in a program's own text raises."""

ANSWER_TIMEOUT = 30.0
"""The time limit for an answer of a program's supervisor, in seconds."""


@dataclass(frozen=True)
class RecordedRun:
    """A case that was run again.

    Args:
        report: the report of that run, with only this case.
        events: the recorded events.
    """

    report: Report
    events: dict[str, Any]


def record(case: str, options: Sequence[str], limit: float) -> RecordedRun:
    """Run one case and return its report and its events.

    Raises:
        Unreplayable: the case could not be run.
    """
    with tempfile.TemporaryDirectory(prefix="reproduce-") as folder:
        report, events = Path(folder, "report.jsonl"), Path(folder, "events.json")
        command = suite_command(
            *OPTIONS, *options, f"--case={case}", f"--report={report}"
        )
        variables = os.environ | {recording.FILE_VARIABLE: str(events)}
        result = run(command, limit, env=variables)
        try:
            found = read_report(str(report))
            return RecordedRun(found, json.loads(events.read_text(encoding="utf-8")))
        except (ReportError, OSError, ValueError):
            said = _reason(result) or f"it took longer than {limit:g} s"
            raise Unreplayable(f"the case could not be run again: {said}") from None


def _reason(result: Result) -> str:
    """Return the line of a run's output that says why it has no report.

    It is the line with the error, as pytest's last line only counts tests.
    """
    lines = printable(result.output).splitlines()
    errors = (line for line in lines if line.startswith("ERROR"))
    return next(errors, result.last_line)


@dataclass(frozen=True)
class ProgramResult:
    """The result of a program.

    Args:
        status: its exit status; None if it took too long.
        output: its output.
    """

    status: int | None
    output: str

    @property
    def own_error(self) -> str:
        """The exception that an error in the program's own text raised, or ""."""
        found = _OWN_ERROR.search(self.output)
        return found[1] if found else ""


def execute(
    program: str, implementation: Implementation, limit: float
) -> ProgramResult:
    """Run a program for at most `limit` seconds, and end all its processes."""
    with tempfile.TemporaryDirectory(prefix="reproduce-") as folder:
        file, root = Path(folder, PROGRAM), stage_folder.new_path()
        file.write_text(program, encoding="utf-8")
        supervisor = Supervisor(_job(file, root, implementation), ANSWER_TIMEOUT)
        try:
            wait_until(lambda: supervisor.status() is not None, limit)
            status = supervisor.status()
            log = Path(stage_folder.log(root))
            output = log.read_text(encoding="utf-8", errors="backslashreplace")
        finally:
            supervisor.close()
    return ProgramResult(status, printable(output))


def _path() -> str:
    """Return the module search path, including the current folder as in pytest."""
    given = os.environ.get("PYTHONPATH")
    return os.pathsep.join([os.getcwd(), given] if given else [os.getcwd()])


def _job(file: Path, root: str, implementation: Implementation) -> dict[str, Any]:
    patterns = implementation.segment_pattern, implementation.manager_pattern
    return job_of(root, [sys.executable, str(file)], {"PYTHONPATH": _path()}, *patterns)
