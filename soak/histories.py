"""Takes random histories with deaths by the ten thousand, other ones in each run.

The default selection takes a few of them, always the same. Here the suite takes them
again and again on the reference, each time with another seed, until there were as many
as were asked for or the time is over. Each has processes of its own, which share, send,
exit, are killed, fork while messages wait, and fill queues; a model says what has to
come of it. Every case has to pass, and none only in its repetition.

What counts is a history that was taken: of a case that does not pass, none is counted.
Ctrl-C ends the last run, and the record has those before. As many as take hours need no
machine for hours at once: ``--add-to`` goes on where a record ends.
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
from sharedtensor_conformance.chapters.lifetime_histories import COST

TESTS = ("deaths", "deaths_of_the_manager", "programs", "starts")
TEST = "test_histories.py::test_histories_{}_end_as_the_model_says"
FAMILIES = (*(f"with_{name}" for name in TESTS), "of_queues", "at_limits")
"""The tests of the suite whose histories have processes that end."""

CASE_LIMIT = 3600  # seconds: a case takes hundreds of histories


def options() -> records.Parser:
    """Return the parser of the command line."""
    parser = records.Parser(__doc__, prog="histories")
    parser.add_argument(
        "--count", type=records.positive, default=100_000, metavar="HISTORIES"
    )
    parser.add_argument(
        "--minutes",
        type=records.positive,
        default=None,
        help="begin no further run after that time (default: only the count ends it)",
    )
    parser.add_argument(
        "--each",
        type=records.positive,
        default=200,
        metavar="HISTORIES",
        help="how many a case takes under fork, where they cost least (default: 200)",
    )
    parser.add_argument(
        "--first-seed", type=records.positive, default=1, metavar="NUMBER"
    )
    parser.add_argument(
        "--add-to",
        type=earlier_record,
        default=None,
        metavar="FILE.json",
        help="count what an earlier record has, and go on with the seed after its last",
    )
    parser.add_argument("--workers", type=int, default=2, metavar="PROCESSES")
    parser.add_argument(
        "--suite",
        action="append",
        default=[],
        metavar="OPTION",
        help="one more option for pytest, such as --suite=--start-method=fork",
    )
    return parser


def earlier_record(path: str) -> dict[str, Any]:
    """Read what an earlier run of this has written.

    Raises:
        argparse.ArgumentTypeError: it is none, or one that found something.
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
    """Take histories until there are enough; return what holds."""
    record |= given.add_to or {"histories": {}, "runs": []}
    try:
        run_all(given, record)
    except KeyboardInterrupt:
        if not record["runs"]:
            raise
        print("\nEnded early: the runs that are complete count.", file=sys.stderr)
    return judge(record)


def run_all(given: argparse.Namespace, record: dict[str, Any]) -> None:
    """Write down what came of each run. Raises `NotHeld` if something is left."""
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
    """Return whether no further run is to begin."""
    return minutes is not None and time.monotonic() - began > 60 * minutes


def one_run(
    sandbox: Sandbox, place: Path, given: argparse.Namespace, seed: int
) -> tuple[dict[str, Any], Counter[str]]:
    """Let the suite take histories with a seed; return what came of them."""
    asked = given.each * COST["fork"]
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
    """Return how many histories the cases that passed have taken, by family."""
    found: Counter[str] = Counter()
    lines = report.read_text().splitlines() if report.exists() else []
    for line in map(json.loads, lines):
        if line["type"] == "case" and line["verdict"] == "pass":
            name = line["test"].removeprefix(TEST.split("{}")[0])
            family = name.removesuffix(TEST.split("{}")[1])
            found[family] += max(1, asked // COST[line["axes"]["start_method"]])
    return found


def add(histories: dict[str, int], more: Counter[str]) -> int:
    """Add to the histories of each family; return how many there are of all."""
    for family, count in sorted(more.items()):
        histories[family] = histories.get(family, 0) + count
    return sum(histories.values())


def judge(record: dict[str, Any]) -> str:
    """Return what holds of all runs. Raises `NotHeld` if one was not all pass."""
    for run in record["runs"]:
        if not loaded.is_flawless(run):
            what = loaded.what_is_wrong(run)
            raise NotHeld(f"The run with seed {run['seed']} {what}.")
    count = sum(record["histories"].values())
    runs = len(record["runs"])
    return f"{count:,} histories with deaths in {runs} runs: all as the model says."


if __name__ == "__main__":
    sys.exit(records.run(None, options(), work))
