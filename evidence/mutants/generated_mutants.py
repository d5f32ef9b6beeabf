"""Tests the suite with mutants of the reference that a program generated.

The suite runs on each mutant of a sample until a clause is broken. It runs in stages,
the cheap configurations first, and each stage only on mutants that survived the stages
before. A person reads the mutants that survive all stages. Either the change makes no
difference that a clause could observe, and the reason is in
``equivalent_mutants.toml``; or the suite has a gap.

The record has the first and the latest result of each mutant. A killed mutant is run
again only with ``--again``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from broken_copies import ROOT, run_suite, uncover
from sharedtensor_conformance.report.records import ReportError, read_report
from soak.circumstances import circumstances

try:
    from syntax_mutants import Change, Mutant, changes, sample
except ModuleNotFoundError as error:
    print(
        f"generated_mutants.py: {error.name} is missing: run `nox -s "
        "generated_mutants`, which installs it, or `pip install cosmic-ray`.",
        file=sys.stderr,
    )
    sys.exit(2)

EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
RECORD = ROOT / "docs" / "reports" / "generated-mutants.json"
NO_CASE = "nothing was selected"
"""The message of a run without cases, for example with another strategy."""

HOST = (
    "reference/sharedtensor/memory.py",
    "reference/sharedtensor/segments.py",
    "reference/sharedtensor/transport.py",
    "reference/sharedtensor/announcements.py",
    "reference/sharedtensor/strategies.py",
    "reference/sharedtensor/state.py",
    "reference/sharedtensor/protocol.py",
    "reference/sharedtensor/storage.py",
    "reference/sharedtensor/multiprocessing/packets.py",
    "reference/sharedtensor/multiprocessing/connection.py",
    "reference/sharedtensor/multiprocessing/queues.py",
)
DEVICE = (
    "reference/sharedtensor/cuda/reducers.py",
    "reference/sharedtensor/cuda/protocol.py",
    "reference/sharedtensor/cuda/state.py",
    "reference/sharedtensor/cuda/counts.py",
    "reference/sharedtensor/cuda/events.py",
    "reference/sharedtensor/cuda/virtual.py",
    "reference/sharedtensor/finalizers.py",
)
"""The mutated files: those that decide how a tensor is sent. Not the arithmetic of
tensors, nor the simulated device, which replaces hardware, nor the keeper of names,
whose tests search all interleavings of its steps.
"""

FORK = "--start-method=fork"
STAGES = {
    HOST: (
        (FORK, "--strategy=file_descriptor"),
        (FORK, "--strategy=file_system"),
        ("--start-method=spawn", "--start-method=forkserver"),
    ),
    # The cases of the host never call these modules.
    DEVICE: (("--device=simulated",),),
}


Key = tuple[str, str, str, str]
Found = tuple[str, str, float]
"""The result of a stage: outcome, killer and duration in seconds."""

SHOWN = ("file", "line", "within", "operator", "before", "after")
KILLED = {"killed", "timeout"}
FOUND = ("outcome", "by", "stages", "seconds", "judged")


def stages_of(mutant: Mutant) -> tuple[tuple[str, ...], ...]:
    """Return the options of the stages for a mutant.

    The first takes only the clauses that the mutated code says it embodies.
    """
    stages = next(stages for files, stages in STAGES.items() if mutant.file in files)
    where = FORK if mutant.file in HOST else "--device=simulated"
    return (where, *(f"--clause={id}" for id in mutant.clauses)), *stages


def run_stage(
    mutant: Mutant | None, options: Sequence[str], limit: float
) -> tuple[str, str]:
    """Run the suite; return ``survived``, ``killed`` or ``timeout``, by what.

    A broken SHOULD also kills, and so does an error that prevents all cases.

    Args:
        mutant: what is judged; None for the unchanged reference.

    Raises:
        RuntimeError: the run failed, but no case did.
    """
    with tempfile.TemporaryDirectory(prefix="gm") as place:
        folder = Path(place)
        if mutant:
            uncover(ROOT, folder, Path(mutant.file))
            (folder / mutant.file).write_text(mutant.source, "utf-8")
            (folder / "sharedtensor").symlink_to("reference/sharedtensor")
        result = run_suite(folder, options, limit)
        if result.status is None:
            return "timeout", f"no end within {limit:g} s"
        if result.status == 0 or NO_CASE in result.output:
            return "survived", ""
        return "killed", _killer(folder / "report.jsonl", result.last_line)


def _killer(report: Path, said: str) -> str:
    """Return the first failed case, or the output if there is no case."""
    with suppress(ReportError):
        cases = read_report(report).cases
        red = [case.id for case in cases if case.verdict.broken]
        if cases and not red:
            raise RuntimeError(f"The suite failed, and broke nothing: {said}")
        return red[0] if red else said
    return said


class Record:
    """The results of a sample of mutants, and their file.

    Args:
        again: whether to discard the latest results; the first results are kept.
    """

    def __init__(self, path: Path, head: dict[str, Any], *, again: bool) -> None:
        self.path, self.head = path, head
        self.known: dict[Key, dict[str, Any]] = {}
        old = json.loads(path.read_text("utf-8"))["mutants"] if path.exists() else []
        for row in old:
            key = (row["file"], row["within"], row["before"], row["after"])
            kept = ("first",) if again else ("first", *FOUND)
            self.known[key] = {name: row[name] for name in kept if name in row}

    def note(self, mutant: Mutant, stage: int, found: Found) -> None:
        """Note the result of a stage."""
        known = self.known.setdefault(mutant.key, {})
        known["outcome"], known["by"], seconds = found
        known["stages"] = stage + 1
        known["judged"] = self.head.get("started", "")
        known["seconds"] = round(known.get("seconds", 0.0) + seconds, 1)
        if known["outcome"] == "survived" and known["stages"] < len(stages_of(mutant)):
            known["outcome"] = "unfinished"
        elif "first" not in known:
            known["first"] = known["outcome"]

    def row(self, mutant: Mutant, reason: str | None) -> dict[str, Any]:
        """Return the row of a mutant in the file."""
        row = {
            name: value for name, value in asdict(mutant).items() if name != "source"
        }
        row |= {"outcome": "not run", **self.known.get(mutant.key, {})}
        if reason is None:
            return row
        if row["outcome"] in KILLED:
            raise SystemExit(f"{mutant.file}:{mutant.line} is not equivalent: {row}")
        return row | {"outcome": "equivalent", "reason": reason}

    def save(self, mutants: Iterable[Mutant]) -> list[dict[str, Any]]:
        """Write the file atomically; return the rows."""
        reasons = equivalents()
        rows = [self.row(mutant, reasons.get(mutant.key)) for mutant in mutants]
        draft = self.path.with_suffix(".tmp")
        text = json.dumps({**self.head, "mutants": rows}, indent=1)
        draft.write_text(text + "\n", "utf-8")
        draft.replace(self.path)
        return rows


def equivalents() -> dict[Key, str]:
    """Return the reasons why mutants are equivalent, by the keys of the mutants."""
    listed = tomllib.loads(EQUIVALENT.read_text("utf-8")).get("mutant", [])
    return {
        (one["file"], one["within"], one["before"], one["after"]): one["reason"]
        for one in listed
    }


class Run:
    """Runs a sample: one stage on all mutants, then the next on the survivors."""

    def __init__(self, limit: float, record: Record) -> None:
        self.limit, self.record = limit, record

    def judge(self, mutants: Sequence[Mutant], jobs: int) -> None:
        """Run the stages on the mutants."""
        for stage in range(1 + max(map(len, STAGES.values()))):
            due = [mutant for mutant in mutants if self.is_due(mutant, stage)]
            with ThreadPoolExecutor(jobs) as pool:
                tasks = {pool.submit(self.run, mutant, stage): mutant for mutant in due}
                try:
                    for task in as_completed(tasks):
                        self.record.note(tasks[task], stage, task.result())
                        self.record.save(mutants)
                        announce(tasks[task], stage, task.result())
                except BaseException:  # wait for running stages, and start no others
                    pool.shutdown(cancel_futures=True)
                    raise

    def is_due(self, mutant: Mutant, stage: int) -> bool:
        """Return whether a stage has to be run on a mutant.

        A mutant that survived all stages is run again from the first stage, because the
        suite may have new tests.
        """
        known = self.record.known.get(mutant.key, {})
        if stage == 0 and known.get("outcome") == "survived":
            known.update(outcome="unfinished", stages=0)
        done = known.get("stages", 0) != stage or known.get("outcome") in KILLED
        over = done or stage >= len(stages_of(mutant))
        return not over and mutant.key not in equivalents()

    def run(self, mutant: Mutant, stage: int) -> Found:
        """Run one stage on one mutant."""
        if mutant.key in equivalents():  # it was added to the file meanwhile
            return "survived", "", 0.0
        started = time.monotonic()
        options = stages_of(mutant)[stage]
        outcome, by = run_stage(mutant, options, self.limit)
        return outcome, by, time.monotonic() - started


def announce(mutant: Mutant, stage: int, found: Found) -> None:
    """Print the result of a stage."""
    outcome, by, seconds = found
    place = f"{mutant.file}:{mutant.line}"
    said = f"{outcome:8}  {place}  {mutant.operator}  stage {stage + 1}"
    print(f"{said}  {seconds:.0f} s  {by}", flush=True)


def score(rows: Iterable[dict[str, Any]], field: str) -> str:
    """Return how many non-equivalent mutants are killed, by a field of the rows."""
    judged = [row for row in rows if row["outcome"] != "equivalent"]
    killed = sum(row.get(field) in KILLED for row in judged)
    share = killed / len(judged) if judged else 0.0
    return f"{killed} of {len(judged)} ({share:.0%})"


def baseline(limit: float) -> None:
    """Exit unless the unchanged reference passes all stages."""
    for options in dict.fromkeys(chain.from_iterable(STAGES.values())):
        outcome, by = run_stage(None, options, limit)
        if outcome != "survived":
            raise SystemExit(f"Unchanged, {' '.join(options)}: {outcome}, {by}")


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="Exit status: 0 if all mutants are killed or equivalent, 1 if not.",
    )
    text = "the seed of the sample (default: %(default)s)"
    parser.add_argument("--seed", type=int, default=0, help=text)
    parser.add_argument("--count", type=int, default=100, help="size of the sample")
    parser.add_argument("--jobs", type=int, default=2, help="parallel runs")
    parser.add_argument("--limit", type=float, default=300, help="seconds per stage")
    parser.add_argument("--record", type=Path, default=RECORD, help="the record")
    parser.add_argument("--again", action="store_true", help="also run killed mutants")
    parser.add_argument("--no-baseline", action="store_true", help="skip the baseline")
    parser.add_argument("--list", action="store_true", help="only show the sample")
    return parser.parse_args(given)


def head(
    found: Sequence[Change], mutants: Sequence[Mutant], seed: int
) -> dict[str, Any]:
    """Return the head of a record: time, machine, and sample.

    A mutant that an earlier run judged has the time of that run.
    """
    return {
        **circumstances(),
        "tool": f"cosmic-ray {importlib.metadata.version('cosmic-ray')}",
        "seed": seed,
        "possible": len(found),
        "places": len({change.place for change in found}),
        "sampled": len(mutants),
    }


def main(given: Sequence[str] | None = None) -> int:
    """Judge a sample; return 1 if a mutant survived that is not equivalent."""
    asked = arguments(given)
    found = changes(ROOT, [*HOST, *DEVICE])
    mutants = sample(ROOT, found, asked.seed, asked.count)
    if asked.list:
        for mutant in mutants:
            print(f"{mutant.file}:{mutant.line} {mutant.within} ({mutant.operator})")
            print(f"- {mutant.before}\n+ {mutant.after}")
        return 0
    about = head(found, mutants, asked.seed)
    record = Record(asked.record, about, again=asked.again)
    os.nice(10)
    if not asked.no_baseline:
        baseline(asked.limit)
    Run(asked.limit, record).judge(mutants, asked.jobs)
    rows = record.save(mutants)
    print(f"killed at first: {score(rows, 'first')}; now: {score(rows, 'outcome')}")
    return int(any(row["outcome"] not in {*KILLED, "equivalent"} for row in rows))


if __name__ == "__main__":
    sys.exit(main())
