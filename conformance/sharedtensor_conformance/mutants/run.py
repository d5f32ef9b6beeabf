"""Runs the suite against mutants: a suite is worth as much as the faults it sees.

Each mutant is judged by a run of its own, on the clauses that it claims to break, in an
empty folder and under a time limit. It is killed when a case that cites one of these
clauses ends in fail, crash or hang. An error of the suite kills nothing.

How precise the suite is shows in a run of all cases: which other clauses turn red?
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sharedtensor_conformance.report.records import Case, ReportError, read_report
from sharedtensor_conformance.report.verdicts import Verdict

KILLING = frozenset({Verdict.FAIL, Verdict.CRASH, Verdict.HANG})
QUICKLY = ("-p", "no:hypothesispytest", "--no-repetition")
"""Options for a run whose first failure is all that is asked for.

The plugin of Hypothesis imports all of it at the end of any run.
"""

FAREWELL = 10.0
"""Seconds that an interrupted run gets to end its own processes."""


class Mutant(Protocol):
    """What is needed to know of a mutant here."""

    @property
    def name(self) -> str:
        """The name, as in ``--impl=mutant:NAME``."""

    @property
    def clauses(self) -> tuple[str, ...]:
        """The clauses that it breaks."""


@dataclass(frozen=True)
class Outcome:
    """What became of one mutant.

    Args:
        fate: ``killed``, ``survived``, or ``unjudged`` where the run came to nothing.
        by: the case that killed it.
        note: why it was not judged, or what else there is to say.
        also: the clauses that broke beside its own, where all cases were run.
    """

    name: str
    clauses: tuple[str, ...]
    fate: str
    by: str = ""
    note: str = ""
    seconds: float = 0.0
    also: tuple[str, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """Return the outcome as JSON-ready data."""
        return asdict(self)

    def __str__(self) -> str:
        detail = self.by or self.note
        clauses = " ".join(self.clauses)
        line = f"{self.fate:8}  {self.name}  [{clauses}]  {self.seconds:.1f} s"
        line = f"{line}  {detail}" if detail else line
        return f"{line}; also {' '.join(self.also)}" if self.also else line


@dataclass
class _Children:
    """The runs in progress, so that none of them outlives an interruption."""

    closed: bool = False
    _running: set[subprocess.Popen[str]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, command: Sequence[str], folder: str) -> subprocess.Popen[str]:
        with self._lock:
            if self.closed:
                raise InterruptedError
            child = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            self._running.add(child)
        return child

    def ended(self, child: subprocess.Popen[str]) -> None:
        with self._lock:
            self._running.discard(child)

    def end_all(self) -> None:
        with self._lock:
            self.closed = True
            running = list(self._running)
        for child in running:
            _signal_group(child, signal.SIGINT)
        deadline = time.monotonic() + FAREWELL
        for child in running:
            with suppress(subprocess.TimeoutExpired):
                child.wait(max(deadline - time.monotonic(), 0))
            _signal_group(child, signal.SIGKILL)


def run_mutants(
    mutants: Iterable[Mutant],
    *,
    jobs: int,
    limit: float,
    announce: Callable[[Outcome], None],
    beside: str = "",
) -> list[Outcome]:
    """Judge each mutant in a run of its own; return the outcomes by name.

    Args:
        mutants: what to judge.
        jobs: how many runs go on at the same time.
        limit: seconds that one run may take.
        announce: called with each outcome as it comes.
        beside: what to run of the other clauses: ``whole`` for all cases under fork,
            ``one_per_clause`` for one case of each, or nothing.
    """
    children = _Children()
    outcomes = []
    with ThreadPoolExecutor(jobs) as pool:
        try:
            tasks = [pool.submit(_judge, m, limit, children, beside) for m in mutants]
            for task in as_completed(tasks):
                announce(task.result())
                outcomes.append(task.result())
        except BaseException:
            children.end_all()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return sorted(outcomes, key=lambda outcome: outcome.name)


def _judge(mutant: Mutant, limit: float, children: _Children, beside: str) -> Outcome:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        report = Path(folder) / "report.jsonl"
        which = "whole" if beside == "whole" else "own"
        said = _run(command_for(mutant, report, which), folder, limit, children)
        fate, by, note = _fate(mutant, report, said)
        if beside == "one-per-clause" and fate != "unjudged":
            report = Path(folder) / "beside.jsonl"
            said = _run(command_for(mutant, report, beside), folder, limit, children)
            if not _is_whole(report):
                fate, by, note = "unjudged", "", said
        also = _also(mutant, report) if beside and fate != "unjudged" else ()
    seconds = time.monotonic() - started
    return Outcome(mutant.name, mutant.clauses, fate, by, note, seconds, also)


def _run(command: Sequence[str], folder: str, limit: float, children: _Children) -> str:
    """Run a command; return why it was ended, or else the last that it said."""
    child = children.start(command, folder)
    try:
        output, in_time = _output_of(child, limit)
    finally:
        children.ended(child)
    return _last_line(output) if in_time else f"the run took longer than {limit:g} s"


CHOSEN = {"whole": ("--start-method=fork",), "one-per-clause": ("--one-per-clause",)}


def command_for(mutant: Mutant, report: Path, which: str = "own") -> list[str]:
    """Return the command that runs `which` cases on `mutant` and writes the `report`.

    Of its ``own`` clauses one killer is enough.
    """
    clauses = (f"--clause={clause}" for clause in mutant.clauses)
    own = ("-x", "--strict", *clauses)  # a SHOULD that is broken ends the run, too
    return [
        sys.executable,
        "-m",
        "pytest",
        "--pyargs",
        "sharedtensor_conformance",
        "-q",
        "-p",
        "no:cacheprovider",
        *QUICKLY,
        f"--impl=mutant:{mutant.name}",
        "--no-expectations",
        f"--report={report}",
        *CHOSEN.get(which, own),
    ]


def _fate(mutant: Mutant, report: Path, said: str) -> tuple[str, str, str]:
    try:
        found = read_report(report)
    except ReportError:
        return "unjudged", "", said or "the run wrote no report"
    if killer := killing_case(mutant, found.cases):
        return "killed", killer.id, ""
    if not found.complete or any(c.verdict is Verdict.ERROR for c in found.cases):
        return "unjudged", "", said
    return "survived", "", f"{len(found.cases)} cases saw nothing"


def _is_whole(report: Path) -> bool:
    try:
        return read_report(report).complete
    except ReportError:
        return False


def _also(mutant: Mutant, report: Path) -> tuple[str, ...]:
    """Return the clauses that broke though the mutant does not name them."""
    broken = {
        id
        for case in read_report(report).cases
        if case.verdict in KILLING and not set(case.clauses) & set(mutant.clauses)
        for id in case.clauses
    }
    return tuple(sorted(broken))


def killing_case(mutant: Mutant, cases: Iterable[Case]) -> Case | None:
    """Return the first case that cites a clause of the mutant and saw it broken."""
    for case in cases:
        if case.verdict in KILLING and set(case.clauses) & set(mutant.clauses):
            return case
    return None


def _output_of(child: subprocess.Popen[str], limit: float) -> tuple[str, bool]:
    try:
        return child.communicate(timeout=limit)[0], True
    except subprocess.TimeoutExpired:
        _signal_group(child, signal.SIGINT)
    try:
        return child.communicate(timeout=FAREWELL)[0], False
    except subprocess.TimeoutExpired:
        _signal_group(child, signal.SIGKILL)
    child.wait()
    if child.stdout is not None:
        child.stdout.close()  # a survivor may hold the other end for ever
    return "", False


def _signal_group(child: subprocess.Popen[str], number: signal.Signals) -> None:
    # The group is the child's own, and it exists until the child has been waited for.
    if child.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else ""
