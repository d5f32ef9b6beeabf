"""Runs other people's tests with pytest, and keeps the outcome of each.

The module is also the plugin in the process that runs the tests. It writes a line of
JSON when a test begins and when it ends, so that the name of a test is known if it
hangs or ends the process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS = {"passed": "pass", "skipped": "skip", "failed": "fail"}
ENDED_BY_ITSELF = (0, 1, 5)
"""Exit statuses of pytest: all passed, some failed, there were none."""

THE_END = "(end of its process)"
PLAIN = (
    *("-q", "-s", "--assert=plain", "-c", os.devnull, "--rootdir=."),
    *(f"-pno:{name}" for name in ("cacheprovider", "warnings", "threadexception")),
    *(f"-pno:{name}" for name in ("unraisableexception", "faulthandler")),
)
"""Options with which pytest changes nothing in the process of the tests."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a test: pass, skip, fail, error, hang, crash or not run."""

    kind: str
    text: str = ""


Outcomes = dict[str, Outcome]


def run(
    folder: Path, chosen: tuple[str, ...], limit: float, **variables: str
) -> tuple[float, Outcomes]:
    """Run tests in a folder, which is the first on the path of modules.

    Returns the duration, and the outcome of each test by its name, such as
    ``test_file.py::Class::test``; `THE_END` is the end of the process. If the tests do
    not end within the limit, they are ended, with all their processes.
    """
    import bounded  # here: the process of the tests imports this module, too

    file, log = folder / "outcomes.jsonl", folder / "log"
    file.write_text("")
    options = (*PLAIN, "-p", "outcomes", f"--outcomes={file}")
    with log.open("w", encoding="utf-8") as printed:
        ended = bounded.run(
            (sys.executable, "-m", "pytest", *options, *chosen),
            limit,
            cwd=folder,
            env=environment(folder, **variables),
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
        )
    return ended.seconds, outcomes_in(file.read_text(encoding="utf-8"), ended.status)


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """Return the environment of tests: path of modules and temporary folder."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    path.append(str(Path(__file__).parent))
    places = {"PYTHONPATH": os.pathsep.join(path), "TMPDIR": str(temporary)}
    return os.environ | places | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | variables


def outcomes_in(lines: str, status: int | None) -> Outcomes:
    """Return the outcomes that were written before the process ended with `status`."""
    unfinished = Outcome("hang")
    if status is not None:
        unfinished = Outcome("crash", f"the process ended with status {status}")
    found = {THE_END: Outcome("pass") if status in ENDED_BY_ITSELF else unfinished}
    for line in map(json.loads, lines.splitlines()):
        if found.get(line["test"], unfinished).kind not in ("fail", "error"):
            began = line["kind"] == "began"
            outcome = unfinished if began else Outcome(line["kind"], line["text"])
            found[line["test"]] = outcome
    return found


# In the process of the tests


def pytest_addoption(parser: Any) -> None:
    """Add the option for the file."""
    parser.addoption("--outcomes", type=Path, metavar="FILE")


def pytest_configure(config: Any) -> None:
    """Write outcomes from now on."""
    # A background process of a shell ignores SIGINT, but tests interrupt themselves.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(Recorder(config.getoption("outcomes")))


class Recorder:
    """Writes the outcome of each test as soon as it is known.

    An expected failure counts as a pass.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    def write(self, nodeid: str, kind: str, text: str = "") -> None:
        """Append a line to the file."""
        line = {"test": nodeid, "kind": kind, "text": text}
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Write that a test begins."""
        self.write(nodeid, "began")

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Write the outcome of a test, or of a part of it."""
        if report.when == "call" or not report.passed:
            kind = KINDS[report.outcome]
            if hasattr(report, "wasxfail"):
                kind = "pass"
            elif report.failed and report.when != "call":
                kind = "error"
            self.write(report.nodeid, kind, said_in(report))


def said_in(report: Any) -> str:
    """Return the first line of what a report says about a failure or a skip."""
    said = report.longrepr
    if isinstance(said, tuple):
        said = said[-1]
    crash = getattr(said, "reprcrash", None)
    lines = str(crash.message if crash else said or "").splitlines()
    return lines[0].removeprefix("Skipped: ") if lines else ""
