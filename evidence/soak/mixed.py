"""Runs the soak scripts together for two hours, to find interactions between them.

Under each strategy, one group of processes shares and sends tensors for the whole time,
and its resources are counted (see `rounds`). At the same time the other soak scripts
run one after another, all but `killed_runs`, in an order that the seed decides: they
kill processes, remove resources that processes need, and run the suite and its random
histories. Nothing that they do may affect the long-lived groups.

Each script has its own sandbox and reports its own result, as when it runs alone.
Ctrl-C ends all of them, and then no record is written.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import recording
from group import STRATEGIES
from recording import NotHeld
from sharedtensor_conformance.bounded_run import Runs
from sharedtensor_conformance.harness.kernel.process_tree import ProcessTree

HERE = Path(__file__).parent
TURNS: dict[str, tuple[str, ...]] = {
    "kills": ("kills", "--kills=100", "--seed={}"),
    "hostile": ("hostile", "--episodes=8", "--hold=5", "--seed={}"),
    "histories": ("suite", "--histories=1", "--each=30", "--busy=0", "--first-seed={}"),
    "suite": ("suite", "--runs=1", "--busy=0"),
}
"""The scripts that run in turn, with the options that limit each turn."""

LONGEST = 3600.0  # maximum seconds of a turn
SLACK = 600.0  # seconds that the groups may take to end
GRACE = 120.0  # seconds that interrupted scripts get to end their processes
KEPT = ("command", "sentence", "held", "seconds")

Found = dict[str, Any]
Watched = dict[str, Future[Found]]


def options() -> recording.Parser:
    """Return the parser of the command line."""
    parser = recording.Parser(__doc__, prog="mixed")
    add = parser.add_argument
    text = "how long to run (default: %(default)g)"
    add("--minutes", type=float, default=120.0, help=text)
    text = "the seed of all random choices (default: %(default)s)"
    add("--seed", type=int, default=1, help=text)
    text = "rounds of a group between two samples (default: %(default)s)"
    add("--every", type=int, default=500, metavar="ROUNDS", help=text)
    text = "take only these turns (may be repeated)"
    add("--only", action="append", choices=tuple(TURNS), default=[], help=text)
    add("--mutant", default="", help="apply this mutant in the long-lived groups")
    return parser


def work(given: argparse.Namespace, record: dict[str, Any]) -> str:
    """Run the groups and the turns; return the sentence of what held."""
    record |= {"minutes": given.minutes, "seed": given.seed, "turns": []}
    runs, tree = Runs(GRACE), ProcessTree()  # it adopts what killed scripts leave
    with (
        tempfile.TemporaryDirectory(prefix="sts-mixed-") as folder,
        ExitStack() as at_last,
        ThreadPoolExecutor(len(STRATEGIES)) as pool,
    ):
        at_last.callback(tree.kill)  # it waits for processes, the scripts among them
        try:
            watched = {
                strategy: pool.submit(watch, runs, Path(folder), strategy, given)
                for strategy in STRATEGIES
            }
            for turn in turns(runs, Path(folder), given, watched):
                record["turns"].append(turn)
                verify(turn, *ended(watched))  # if one has failed, end the others
            record["watched"] = {name: one.result() for name, one in watched.items()}
        finally:
            runs.end_all()
    verify(*record["watched"].values())
    return sentence(record)


def watch(runs: Runs, folder: Path, strategy: str, given: argparse.Namespace) -> Found:
    """Run a group for the whole time; return the record of its rounds."""
    chosen = [f"--strategy={strategy}", f"--minutes={given.minutes:g}"]
    chosen += [f"--every={given.every}", f"--seed={given.seed}", "--start-method=spawn"]
    chosen += [f"--mutant={given.mutant}"] if given.mutant else []
    limit = 60 * given.minutes + SLACK
    return one_run(runs, folder / f"{strategy}.json", "rounds", chosen, limit)


def turns(
    runs: Runs, folder: Path, given: argparse.Namespace, watched: Watched
) -> Iterator[Found]:
    """Yield the result of each turn, until the time is over."""
    choose, began = random.Random(given.seed), time.monotonic()
    progress = recording.Progress(round(60 * given.minutes), "seconds")
    while (passed := time.monotonic() - began) < 60 * given.minutes:
        script, *chosen = TURNS[choose.choice(given.only or list(TURNS))]
        progress.at(round(passed), f", now {script}")
        chosen = [one.format(choose.randrange(1, 10_000)) for one in chosen]
        found = one_run(runs, folder / "turn.json", script, chosen, LONGEST)
        yield {"script": script, **{key: found[key] for key in KEPT}}


def ended(watched: Watched) -> list[Found]:
    """Return the results of the groups that have ended."""
    return [one.result() for one in watched.values() if one.done()]


def one_run(
    runs: Runs, out: Path, script: str, chosen: list[str], limit: float
) -> Found:
    """Run a script; return its record, or its output if it wrote no record.

    Its temporary files are in the folder of `out`, which is removed also if the script
    has to be killed.
    """
    out.unlink(missing_ok=True)
    began = time.monotonic()
    command = [sys.executable, str(HERE / f"{script}.py"), f"--out={out}", *chosen]
    done = runs.run(command, limit, env={**os.environ, "TMPDIR": str(out.parent)})
    with suppress(OSError, ValueError):
        found: Found = json.loads(out.read_text())
        return found
    return {
        "command": " ".join(["python", f"evidence/soak/{script}.py", *chosen]),
        "sentence": f"It ended with status {done.status}: {done.last_line}",
        "held": False,
        "seconds": recording.seconds_since(began),
    }


def verify(*results: Found) -> None:
    """Raise `NotHeld` if one of these runs did not hold."""
    for found in results:
        if not found["held"]:
            raise NotHeld(f"{found['command']}: {found['sentence']}")


def sentence(record: dict[str, Any]) -> str:
    """Return the sentence for all runs, with the number of turns of each script."""
    rounds = sum(found["rounds"] for found in record["watched"].values())
    counts = Counter(turn["script"] for turn in record["turns"])
    parts = ", ".join(f"{counts[script]} of {script}.py" for script in sorted(counts))
    return (
        f"{record['minutes']:g} minutes: {rounds:,} rounds under two strategies, whose "
        f"counts stayed as they were, beside {counts.total()} turns ({parts}); all "
        "held."
    )


if __name__ == "__main__":
    sys.exit(recording.run(None, options(), work))
