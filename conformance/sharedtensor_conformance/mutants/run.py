"""Runs the suite on mutants, to measure how well the suite detects faults.

Each mutant is judged by a separate run, on the clauses that it claims to break, in an
empty folder and with a time limit. It is killed if a case that cites one of these
clauses ends in fail, crash or hang. An error of the suite does not kill a mutant.

A run of all cases shows the precision of the suite: which other clauses break.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from sharedtensor_conformance.api import suite_command
from sharedtensor_conformance.bounded_run import Runs
from sharedtensor_conformance.report.records import Case, ReportError, read_report
from sharedtensor_conformance.report.verdicts import Verdict

KILLING = frozenset({Verdict.FAIL, Verdict.CRASH, Verdict.HANG})
FIRST_FAILURE = (
    *("-q", "-p", "no:cacheprovider", "--no-repetition"),
    *("-p", "no:hypothesispytest"),  # it imports all of Hypothesis at the end of a run
)
"""Options for a run of which only the first failure is needed."""


class Mutant(Protocol):
    """The properties of a mutant that this module uses."""

    @property
    def name(self) -> str:
        """The name, as in ``--impl=mutant:NAME``."""
        ...

    @property
    def clauses(self) -> tuple[str, ...]:
        """The clauses that it breaks."""
        ...

    @property
    def histories(self) -> str:
        """The test of random histories that finds it; empty if other tests do."""
        ...


@dataclass(frozen=True)
class Outcome:
    """The result of a mutant.

    Args:
        fate: ``killed``, ``survived``, or ``unjudged`` if the run gave no result.
        by: the case that killed it.
        note: why it was not judged, or another remark.
        also: the other clauses that broke, if their cases were run.
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


def run_mutants(
    mutants: Iterable[Mutant],
    *,
    jobs: int,
    limit: float,
    announce: Callable[[Outcome], None],
    others: str = "",
) -> list[Outcome]:
    """Judge each mutant in a separate run; return the outcomes, sorted by name.

    Args:
        mutants: the mutants to judge.
        jobs: how many runs are made in parallel.
        limit: the time limit of a run in seconds.
        announce: called with each outcome when it is known.
        others: which cases of other clauses to run: ``whole`` for all cases under fork,
            ``one-per-clause`` for one case of each clause, or "" for none.
    """
    runs = Runs()
    outcomes = []
    with ThreadPoolExecutor(jobs) as pool:
        try:
            tasks = [pool.submit(_judge, m, limit, runs, others) for m in mutants]
            for task in as_completed(tasks):
                announce(task.result())
                outcomes.append(task.result())
        except BaseException:
            runs.end_all()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return sorted(outcomes, key=lambda outcome: outcome.name)


def _judge(mutant: Mutant, limit: float, runs: Runs, others: str) -> Outcome:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        report = Path(folder) / "report.jsonl"
        which = "whole" if others == "whole" else "own"
        said = _run(command_for(mutant, report, which), folder, limit, runs)
        fate, by, note = _fate(mutant, report, said)
        if which == "own" and fate == "unjudged":  # the first failure broke others
            said = _run(command_for(mutant, report, "every"), folder, limit, runs)
            fate, by, note = _fate(mutant, report, said)
        if others == "one-per-clause" and fate != "unjudged":
            report = Path(folder) / "others.jsonl"
            said = _run(command_for(mutant, report, others), folder, limit, runs)
            if not _is_whole(report):
                fate, by, note = "unjudged", "", said
        also = _also(mutant, report) if others and fate != "unjudged" else ()
    seconds = time.monotonic() - started
    return Outcome(mutant.name, mutant.clauses, fate, by, note, seconds, also)


def _run(command: Sequence[str], folder: str, limit: float, runs: Runs) -> str:
    """Run a command; return why it was ended, or else its last line of output."""
    result = runs.run(command, limit, cwd=folder)
    if result.status is None:
        return f"the run took longer than {limit:g} s"
    return result.last_line


HISTORIES = 1200
"""The number of histories for a mutant that random histories find."""

CHOSEN = {"whole": ("--start-method=fork",), "one-per-clause": ("--one-per-clause",)}


def command_for(mutant: Mutant, report: Path, which: str = "own") -> list[str]:
    """Return the command that runs `which` cases on `mutant` and writes the `report`.

    With ``own``, the run of the mutant's clauses stops at the first failure; with
    ``every``, it continues. The keys of `CHOSEN` select cases of all clauses.
    """
    clauses = (f"--clause={clause}" for clause in mutant.clauses)
    found_by: tuple[str, ...] = ()
    if mutant.histories:
        test = f"test_histories.py::{mutant.histories}*"
        found_by = (f"--histories={HISTORIES}", f"--case={test}")
    every = ("--strict", *clauses, *found_by)
    own = ("-x", *every)  # being strict, a broken SHOULD ends the run, too
    return suite_command(
        *FIRST_FAILURE,
        f"--impl=mutant:{mutant.name}",
        "--no-expectations",
        f"--report={report}",
        *(CHOSEN | {"own": own, "every": every})[which],
    )


def _fate(mutant: Mutant, report: Path, said: str) -> tuple[str, str, str]:
    try:
        found = read_report(report)
    except ReportError:
        return "unjudged", "", said or "the run wrote no report"
    if killer := killing_case(mutant, found.cases):
        return "killed", killer.id, ""
    blocked = [c for c in found.cases if c.verdict is Verdict.BLOCKED]
    if blocked:  # it does not do what it says, but breaks everything
        return "unjudged", "", blocked[0].evidence
    if not found.complete or any(c.verdict is Verdict.ERROR for c in found.cases):
        return "unjudged", "", said
    return "survived", "", f"{len(found.cases)} cases saw nothing"


def _is_whole(report: Path) -> bool:
    try:
        return read_report(report).complete
    except ReportError:
        return False


def _also(mutant: Mutant, report: Path) -> tuple[str, ...]:
    """Return the clauses that broke in cases that cite no clause of the mutant."""
    broken = {
        id
        for case in read_report(report).cases
        if case.verdict in KILLING and not set(case.clauses) & set(mutant.clauses)
        for id in case.clauses
    }
    return tuple(sorted(broken))


def killing_case(mutant: Mutant, cases: Iterable[Case]) -> Case | None:
    """Return the first broken case that cites a clause of the mutant."""
    for case in cases:
        if case.verdict in KILLING and set(case.clauses) & set(mutant.clauses):
            return case
    return None
