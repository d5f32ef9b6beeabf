"""Runs tens of thousands of random histories with deaths, with a new seed in each run.

The default selection of the suite runs only a few histories, always the same. This
script runs the suite on the reference repeatedly, each time with another seed, until
the requested number of histories or the time limit is reached. In each history,
processes share, send, exit, are killed, fork while messages wait, and fill queues. A
model computes the expected result. Every case has to pass at its first attempt.

Only histories of passed cases are counted. Ctrl-C ends the current run; the record
contains the complete runs. ``--add-to`` continues an earlier record, so that several
short sessions can replace a long one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import loaded
import records
from circumstances import commit
from records import NotHeld
from sandbox import Sandbox
from sharedtensor_conformance.chapters.random_histories import RELATIVE_COST

TESTS = ("deaths", "deaths_of_the_manager", "programs", "starts")
TEST = "test_histories.py::test_histories_{}_end_as_the_model_says"
FAMILIES = (*(f"with_{name}" for name in TESTS), "of_queues", "at_limits")
"""The tests of the suite with histories in which processes end."""

CASE_LIMIT = 3600  # seconds: a case runs hundreds of histories


def options() -> records.Parser:
    """Return the parser of the command line."""
    parser = records.Parser(__doc__, prog="histories")
    parser.add_argument(
        "--count",
        type=records.positive,
        default=100_000,
        metavar="HISTORIES",
        help="how many histories to run (default: %(default)s)",
    )
    parser.add_argument(
        "--minutes",
        type=records.positive,
        default=None,
        help="start no further run after this time (default: no time limit)",
    )
    parser.add_argument(
        "--each",
        type=records.positive,
        default=200,
        metavar="HISTORIES",
        help="histories of a case under fork, the fastest (default: %(default)s)",
    )
    parser.add_argument(
        "--first-seed",
        type=records.positive,
        default=1,
        metavar="NUMBER",
        help="the seed of the first run (default: %(default)s)",
    )
    parser.add_argument(
        "--add-to",
        type=earlier_record,
        default=None,
        metavar="FILE.json",
        help="continue an earlier record: add to its counts, with the next seed",
    )
    text = "workers of pytest-xdist (default: %(default)s)"
    parser.add_argument("--workers", type=int, default=2, metavar="COUNT", help=text)
    parser.add_argument(
        "--suite",
        action="append",
        default=[],
        metavar="OPTION",
        help="an additional option for pytest, for example --suite=--start-method=fork",
    )
    return parser


def earlier_record(path: str) -> dict[str, Any]:
    """Return the record of an earlier run.

    Raises:
        argparse.ArgumentTypeError: the file is not a record in which everything held.
    """
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
        found = {key: record[key] for key in ("histories", "runs", "seconds")}
        held = record["held"] and max(run["seed"] for run in found["runs"]) > 0
    except (OSError, ValueError, KeyError, TypeError):
        held = False
    if not held:
        raise argparse.ArgumentTypeError(
            f"{path} is no record of histories that were all as the model says"
        )
    return found


def work(given: argparse.Namespace, record: dict[str, Any]) -> str:
    """Run histories until there are enough; return the sentence of what held."""
    record |= given.add_to or {"histories": {}, "runs": []}
    try:
        run_all(given, record)
    except KeyboardInterrupt:
        if not record["runs"]:
            raise
        print("\nEnded early: the runs that are complete count.", file=sys.stderr)
    return judge(record)


def run_all(given: argparse.Namespace, record: dict[str, Any]) -> None:
    """Record the result of each run. Raises `NotHeld` if something is left."""
    progress = records.Progress(given.count, "histories")
    began, taken = time.monotonic(), sum(record["histories"].values())
    first = 1 + max((run["seed"] for run in record["runs"]), default=0)
    seeds = itertools.count(max(given.first_seed, first))
    with Sandbox() as sandbox, tempfile.TemporaryDirectory(prefix="sts-many-") as place:
        while taken < given.count and not is_over(began, given.minutes):
            seed = next(seeds)
            run, found = one_run(sandbox, Path(place), given, seed)
            record["runs"].append(run)
            taken = add(record["histories"], found)
            progress.at(min(taken, given.count), f", seed {seed}")
            if left := sandbox.left_after(loaded.GRACE):
                raise NotHeld(f"After the run with seed {seed} there is {left}.")
            if not loaded.is_flawless(run):
                break
    progress.end()


def is_over(began: float, minutes: int | None) -> bool:
    """Return whether the time limit is reached."""
    return minutes is not None and time.monotonic() - began > 60 * minutes


def one_run(
    sandbox: Sandbox, place: Path, given: argparse.Namespace, seed: int
) -> tuple[dict[str, Any], Counter[str]]:
    """Run the suite's histories with a seed; return the results."""
    asked = given.each * RELATIVE_COST["fork"]
    suite = [
        *(f"--case={TEST.format(family)}*" for family in FAMILIES),
        f"--histories={asked}",
        f"--history-seed={seed}",
        f"--case-limit={CASE_LIMIT}",
        *given.suite,
    ]
    same = argparse.Namespace(
        python=sys.executable, as_user="", workers=given.workers, suite=suite
    )
    run = loaded.one_run(sandbox, place, same, None)
    run |= {"seed": seed, "commit": commit()}
    return run, histories_of(place / "report.jsonl", asked)


def histories_of(report: Path, asked: int) -> Counter[str]:
    """Return the number of histories of passed cases, by family."""
    found: Counter[str] = Counter()
    lines = report.read_text().splitlines() if report.exists() else []
    for line in map(json.loads, lines):
        if line["type"] == "case" and line["verdict"] == "pass":
            name = line["test"].removeprefix(TEST.split("{}")[0])
            family = name.removesuffix(TEST.split("{}")[1])
            cost = RELATIVE_COST[line["axes"]["start_method"]]
            found[family] += max(1, asked // cost)
    return found


def add(histories: dict[str, int], more: Counter[str]) -> int:
    """Add to the histories of each family; return the total."""
    for family, count in sorted(more.items()):
        histories[family] = histories.get(family, 0) + count
    return sum(histories.values())


def judge(record: dict[str, Any]) -> str:
    """Return the sentence for all runs. Raises `NotHeld` unless all cases passed."""
    for run in record["runs"]:
        if not loaded.is_flawless(run):
            what = loaded.what_is_wrong(run)
            raise NotHeld(f"The run with seed {run['seed']} {what}.")
    count = sum(record["histories"].values())
    runs = len(record["runs"])
    return f"{count:,} histories with deaths in {runs} runs: all as the model says."


if __name__ == "__main__":
    sys.exit(records.run(None, options(), work))
