"""Runs the soak scripts together for two hours, to find interactions between them.

Under each strategy, one pair of processes shares and sends tensors for the whole time,
and their resources are counted (see `rounds`). At the same time the other soak scripts
run one after another, all but `killed_runs`, in an order that the seed decides: they
kill processes, remove resources that processes need, run random histories, and run
the suite. Nothing that they do may affect the long-lived pairs.

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
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import records
from records import NotHeld
from sharedtensor_conformance.bounded_run import Runs
from sharedtensor_conformance.harness.process_tree import ProcessTree

HERE = Path(__file__).parent
STRATEGIES = ("file_descriptor", "file_system")
TURNS: dict[str, tuple[str, ...]] = {
    "kills": ("--kills=100",),
    "hostile": ("--episodes=8", "--hold=5"),
    "histories": ("--count=1", "--each=30"),
    "loaded": ("--runs=1", "--busy=0"),
}
"""The scripts that run in turn, with the options that limit each turn."""

IN_WORDS = {
    "kills": "kills",
    "hostile": "hostile environments",
    "histories": "random histories",
    "loaded": "the suite",
}

SEED_OF = {"histories": "--first-seed", "loaded": ""}
"""The option for the seed, if it is not ``--seed``; empty if there is none."""

LONGEST = 3600.0  # maximum seconds of a turn
SLACK = 600.0  # seconds that the pairs may take to end
GRACE = 120.0  # seconds that interrupted scripts get to end their processes


def options() -> records.Parser:
    """Return the parser of the command line."""
    parser = records.Parser(__doc__, prog="mixed")
    text = "how long to run (default: %(default)g)"
    parser.add_argument("--minutes", type=float, default=120.0, help=text)
    text = "the seed of all random choices (default: %(default)s)"
    parser.add_argument("--seed", type=int, default=1, help=text)
    parser.add_argument(
        "--every",
        type=int,
        default=10_000,
        metavar="ROUNDS",
        help="rounds of a pair between two samples (default: %(default)s)",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=tuple(TURNS),
        default=[],
        help="run only this script in turn (may be repeated)",
    )
    parser.add_argument(
        "--mutant", default="", help="apply this mutant in the long-lived pairs"
    )
    return parser


def work(given: argparse.Namespace, record: dict[str, Any]) -> str:
    """Run the pairs and the turns; return the sentence of what held."""
    record |= {"minutes": given.minutes, "seed": given.seed}
    record |= {"turns": [], "watched": {}}
    runs = Runs(GRACE)
    tree = ProcessTree()  # adopts what a script leaves that was killed
    with (
        tempfile.TemporaryDirectory(prefix="sts-mixed-") as place,
        ExitStack() as at_last,
        ThreadPoolExecutor(len(STRATEGIES)) as pool,
    ):
        at_last.callback(tree.kill)  # it waits for processes, the scripts among them
        folder = Path(place)
        try:
            watched = {
                strategy: pool.submit(watch, runs, folder, strategy, given)
                for strategy in STRATEGIES
            }
            take_turns(runs, folder, given, watched, record["turns"])
            ended = [one.result() for one in watched.values() if one.done()]
            verify([*record["turns"], *ended])  # if one has failed, end the others
            for strategy, found in watched.items():
                record["watched"][strategy] = found.result()
        finally:
            runs.end_all()
    return judge(record)


def watch(
    runs: Runs, folder: Path, strategy: str, given: argparse.Namespace
) -> dict[str, Any]:
    """Run a pair for the whole time; return the record of its rounds."""
    chosen = [f"--strategy={strategy}", f"--minutes={given.minutes:g}"]
    chosen += [f"--every={given.every}", f"--seed={given.seed}", "--start-method=spawn"]
    chosen += [f"--mutant={given.mutant}"] if given.mutant else []
    limit = 60 * given.minutes + SLACK
    return one_run(runs, folder / f"{strategy}.json", "rounds", chosen, limit)


def take_turns(
    runs: Runs,
    folder: Path,
    given: argparse.Namespace,
    watched: dict[str, Future[dict[str, Any]]],
    turns: list[dict[str, Any]],
) -> None:
    """Record the result of each turn, until the time is over or something failed."""
    choose = random.Random(given.seed)
    progress = records.Progress(round(60 * given.minutes), "seconds")
    began = time.monotonic()
    while (passed := time.monotonic() - began) < 60 * given.minutes:
        script = choose.choice(given.only or list(TURNS))
        progress.at(round(passed), f", {len(turns)} turns, now {script}")
        seed = choose.randrange(1, 10_000)
        option = SEED_OF.get(script, "--seed")
        chosen = [*TURNS[script], *([f"{option}={seed}"] if option else [])]
        found = one_run(runs, folder / "turn.json", script, chosen, LONGEST)
        kept = ("command", "sentence", "held", "seconds")
        turns.append({"script": script, **{key: found[key] for key in kept}})
        ended = [one for one in watched.values() if one.done()]
        if not found["held"] or any(not one.result()["held"] for one in ended):
            break
    progress.end()


def one_run(
    runs: Runs, out: Path, script: str, chosen: list[str], limit: float
) -> dict[str, Any]:
    """Run a script; return its record, or its output if it wrote no record.

    Its temporary files are in the folder of `out`, which is removed also if the script
    has to be killed.
    """
    out.unlink(missing_ok=True)
    began = time.monotonic()
    command = [sys.executable, str(HERE / f"{script}.py"), f"--out={out}", *chosen]
    environment = {**os.environ, "TMPDIR": str(out.parent)}
    ended = runs.run(command, limit, env=environment)
    with suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads(out.read_text())
        return found
    return {
        "command": records.command_line(chosen),
        "sentence": f"It ended with status {ended.status}: {ended.last_line}",
        "held": False,
        "seconds": records.seconds_since(began),
    }


def judge(record: dict[str, Any]) -> str:
    """Return the sentence for all runs. Raises `NotHeld` if one did not hold."""
    verify(record["watched"].values())
    rounds = sum(found["rounds"] for found in record["watched"].values())
    return (
        f"{record['minutes']:g} minutes: {rounds:,} rounds under two strategies, whose "
        f"counts stayed as they were, beside {in_words(record['turns'])}; all held."
    )


def verify(runs: Iterable[dict[str, Any]]) -> None:
    """Raise `NotHeld` if one of these runs did not hold."""
    for found in runs:
        if not found["held"]:
            raise NotHeld(f"{found['command']}: {found['sentence']}")


def in_words(turns: list[dict[str, Any]]) -> str:
    """Return the number of turns of each script, in words."""
    counts = Counter(turn["script"] for turn in turns)
    parts = [f"{counts[script]} of {IN_WORDS[script]}" for script in sorted(counts)]
    turn = "turn" if len(turns) == 1 else "turns"
    return f"{len(turns)} {turn} ({', '.join(parts)})"


if __name__ == "__main__":
    sys.exit(records.run(None, options(), work))
