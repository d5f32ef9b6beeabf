"""Ends runs of the suite at random moments, and checks what they leave behind.

Each run judges a chapter, with two workers or with none. It is killed (SIGKILL) or
interrupted (SIGINT) a fraction of a second after some line of its report, or while it
starts. Then its report has every case whose result pytest had printed. The command
``shared-tensor-spec report`` can show the report and says that it was cut short. The
report says nothing about cases that the run did not reach. Within the grace period, no
process, no name in `/dev/shm` and no temporary file of the run is left.

The seed decides everything except the scheduling by the kernel.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import recording
from recording import NotHeld
from sandbox import Sandbox
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.cli import main as command
from sharedtensor_conformance.harness.kernel.process_tree import wait_until
from sharedtensor_conformance.plugin.enumeration import id_in_report
from sharedtensor_conformance.report.records import Report, read_report
from suite import ROOT

CHAPTERS = ("CHAN", "GRAD", "LIFE", "MGR", "RESHARE", "SHARE", "SPAWN", "VIEW")
SIGNALS = (signal.SIGKILL, signal.SIGINT)
WORKERS = (0, 2)
EARLY = 5  # one of this many runs is ended while it starts
STARTING = 3.0  # seconds in which a run starts
LINES_AT_MOST = 40
LATEST = 0.2  # seconds from the line to the signal
DEADLINE = 300.0  # seconds until a run has reached the line, or has ended
GRACE = 20.0  # seconds until everything has to be gone
TOLD = re.compile(
    r"(test_\w+\.py::\S+) (?:PASSED|FAILED|SKIPPED|XFAIL)\b"
    r"|(?:PASSED|FAILED|SKIPPED|XFAIL) \S*?(test_\w+\.py::\S+)"
)
"""A case with its result in pytest's output, without workers and with them."""

UNREACHED = ("judged by no case", "judged them", "stale expectations")


@dataclass(frozen=True)
class Plan:
    """One run, and when it is ended; `lines` is None if it is ended while it starts."""

    number: int
    signal: signal.Signals
    workers: int
    chapter: str
    lines: int | None
    delay: float

    @classmethod
    def planned(cls, seed: int, number: int) -> Plan:
        """Return the plan of a run; it depends only on seed and number."""
        choose = random.Random(f"{seed} {number}")
        early = choose.randrange(EARLY) == 0
        return cls(
            number=number,
            signal=choose.choice(SIGNALS),
            workers=choose.choice(WORKERS),
            chapter=choose.choice(CHAPTERS),
            lines=None if early else choose.randrange(1, LINES_AT_MOST),
            delay=choose.uniform(0, STARTING if early else LATEST),
        )

    def options(self, report: Path) -> list[str]:
        """Return the arguments of Python for the run."""
        clauses = [id for id in load_clauses() if id.startswith(f"{self.chapter}-")]
        return [
            *("-m", "pytest", "conformance", "-v", "-n", str(self.workers)),
            *("-p", "no:cacheprovider", "--start-method=fork", f"--report={report}"),
            f"--basetemp={report.with_name('base')}",  # pytest's own, not the suite's
            *(f"--clause={clause}" for clause in clauses),
        ]


def options() -> recording.Parser:
    """Return the parser of the command line."""
    parser = recording.Parser(__doc__, prog="killed_runs")
    add = parser.add_argument
    text = "how many runs to end (default: %(default)s)"
    add("--runs", type=int, default=50, help=text)
    text = "the seed of all random choices (default: %(default)s)"
    add("--seed", type=int, default=0, help=text)
    add("--only", type=int, metavar="NUMBER", help="only this run")
    return parser


def work(given: argparse.Namespace, record: dict[str, Any]) -> str:
    """Start and end runs; return the sentence of what held."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A background process of a shell ignores SIGINT, and runs would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    counts: Counter[str] = Counter()
    record |= {"seed": given.seed}
    progress = recording.Progress(given.runs, "runs")
    numbers = range(given.runs) if given.only is None else [given.only]
    with Sandbox() as sandbox, tempfile.TemporaryDirectory(prefix="sts-") as folder:
        record["private_shm"] = sandbox.has_private_shm
        for number in numbers:
            plan = Plan.planned(given.seed, number)
            try:
                counts.update(one_run(sandbox, Path(folder), plan))
            except NotHeld as error:
                again = f"--seed {given.seed} --only {number}"
                raise NotHeld(
                    f"In run {number} ({plan}) {error}\n"
                    f"Repeat it with: python evidence/soak/killed_runs.py {again}"
                ) from None
            record["counts"] = dict(counts)
            progress.at(number + 1)
    return (
        f"{len(numbers)} runs were ended at random moments: their reports have all "
        f"{counts['told']} cases that were told, and nothing was left."
    )


def one_run(sandbox: Sandbox, folder: Path, plan: Plan) -> Counter[str]:
    """Start a run, end it, and check what is left. Raises `NotHeld`."""
    report, output = folder / "report.jsonl", folder / "output.txt"
    report.unlink(missing_ok=True)
    with output.open("wb") as file:
        run = sandbox.start(
            sys.executable,
            *plan.options(report),
            cwd=ROOT,
            env=sandbox.environment(),
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    await_moment(plan, report, ended=lambda: sandbox.status_of(run.pid) is not None)
    before = lines_in(report)
    with contextlib.suppress(ProcessLookupError):
        os.kill(run.pid, plan.signal)
    if not wait_until(lambda: sandbox.status_of(run.pid) is not None, DEADLINE):
        raise NotHeld(f"it goes on {DEADLINE:.0f} seconds after the signal.")
    if left := sandbox.left_after(GRACE):
        raise NotHeld(f"{GRACE:.0f} seconds after the end there is {left}.")
    found = TOLD.findall(output.read_text())
    told = {id_in_report(one or other) for one, other in found}
    kind = f"{plan.signal.name}, {plan.workers} workers"
    counts = Counter({kind: 1, "told": len(told)})
    return counts + look(report, before, told)


def await_moment(plan: Plan, report: Path, ended: Callable[[], bool]) -> None:
    """Wait until the run has reached its line, or has ended. Raises `NotHeld`."""
    if plan.lines is not None:
        reached = plan.lines
        if not wait_until(lambda: lines_in(report) >= reached or ended(), DEADLINE):
            raise NotHeld(f"it had not come so far after {DEADLINE:.0f} seconds.")
    time.sleep(plan.delay)  # the moment is a random one


def lines_in(report: Path) -> int:
    """Return the number of complete lines of a report."""
    return report.read_bytes().count(b"\n") if report.exists() else 0


def look(path: Path, before: int, told: set[str]) -> Counter[str]:
    """Check the report of a run that was ended. Raises `NotHeld`."""
    if lines_in(path) < before:
        raise NotHeld(f"the report has lost lines: there were {before}.")
    if not lines_in(path):
        if told:
            raise NotHeld(f"there is no report, and {min(told)} was told.")
        return Counter({"ended before the first line": 1})
    report = read_report(path)
    if missing := told - {case.id for case in report.cases}:
        raise NotHeld(f"the report lacks {min(missing)}, which was told.")
    said = shown(path)
    cut = f"cut short after {len(report.cases)} of {report.run.planned} planned cases"
    if (cut in said) == report.complete:
        raise NotHeld(f"it says not how far it came: {said[-300:]}")
    if wrong := [words for words in UNREACHED if words in said]:
        raise NotHeld(f"it speaks of what it did not reach: {wrong[0]}.")
    return Counter({kind_of(report): 1, "cases": len(report.cases)})


def shown(path: Path) -> str:
    """Return what ``shared-tensor-spec report`` prints, in one line."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        if command(["report", str(path)]) != 0:
            raise NotHeld("its report cannot be shown.")
    return " ".join(out.getvalue().split())


def kind_of(report: Report) -> str:
    """Return a description of how far a run came."""
    if report.complete:
        return "had reached its end"
    return "cut short, with a summary" if report.summary else "cut short, without one"


if __name__ == "__main__":
    sys.exit(recording.run(None, options(), work))
