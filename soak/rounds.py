"""Shares, sends, receives and drops tensors in thousands of rounds, and counts leaks.

An owner and a peer (see `rounds_pair`) execute rounds of all kinds: over all channels,
in both directions, with tensors of 0 to some hundred thousand bytes, several tensors in
one message, views, grads, and messages that are refused. The sender or the receiver
drops first, or the sender drops while the message is in flight. Every value is
verified. At intervals both stop at a point where they hold nothing. Then this process
reads in `/proc` the resources of both and of the manager, without using the
implementation.

After the warm-up, every sample has to be equal to the first one in descriptors,
mappings, threads and names. Memory must not grow: the regression line through the
samples of the second half rises by at most `BOUND`. At the end nothing is left.
"""

from __future__ import annotations

import argparse
import json
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import records
from records import NotHeld
from sandbox import ResourceCounts, Sandbox, resources_of
from sharedtensor_conformance.harness.private_shm import mount_if_permitted
from sharedtensor_conformance.harness.process_tree import wait_until
from subjects import THE_LAST

PAIR = Path(__file__).with_name("rounds_pair.py")
COUNTED = ("descriptors", "mappings", "threads")
MEASURED = ("memory", "heap")
BOUND = 1024  # KiB over the second half of the samples
WARM_UP = 200  # rounds; a tenth of the run if that is less
DEADLINE = 600.0  # seconds between two samples, on a machine that is busy as well
GRACE = 5.0  # seconds until everything has to be gone

Samples = dict[str, Any]


def options() -> records.Parser:
    """Return the parser of the command line."""
    parser = records.Parser(__doc__, prog="rounds")
    text = "how many rounds (default: %(default)s)"
    parser.add_argument("--rounds", type=records.positive, default=10_000, help=text)
    parser.add_argument(
        "--minutes",
        type=float,
        default=None,
        help="run for this time instead of a number of rounds",
    )
    parser.add_argument("--every", type=records.positive, help="rounds between samples")
    parser.add_argument(
        "--strategy",
        choices=("file_descriptor", "file_system"),
        default="file_descriptor",
        help="the sharing strategy (default: %(default)s)",
    )
    parser.add_argument(
        "--start-method",
        choices=("fork", "spawn", "forkserver"),
        default="spawn",
        help="the start method (default: %(default)s)",
    )
    text = "the seed of all random choices (default: %(default)s)"
    parser.add_argument("--seed", type=int, default=1, help=text)
    text = "apply this mutant to the reference; the run then has to fail"
    parser.add_argument("--mutant", default="", help=text)
    return parser


def work(given: argparse.Namespace, record: dict[str, Any]) -> str:
    """Run the rounds; return the sentence of what held."""
    rounds = given.rounds if given.minutes is None else sys.maxsize
    every = given.every or max(1, given.rounds // 100)
    chosen = {
        "rounds": rounds,
        "every": every,
        "strategy": given.strategy,
        "start_method": given.start_method,
        "seed": given.seed,
        "mutant": given.mutant,
    }
    record |= {**chosen, "warm_up": min(WARM_UP, rounds // 10), "bound": BOUND}
    with Sandbox(mount_if_permitted) as sandbox:
        record["private_shm"] = sandbox.has_private_shm
        record["samples"] = {"round": [], "names": [], "semaphores": []}
        record["rounds"] = observe(sandbox, chosen, record, given.minutes)
        if left := sandbox.left_after(GRACE):
            raise NotHeld(f"{GRACE:g} seconds after the end there is still {left}.")
    judge(record)
    return (
        f"{record['rounds']} rounds under {given.strategy}: all values were right, "
        f"counts stayed as they were after {record['warm_up']} rounds, memory rose by "
        f"no more than {BOUND} KiB, and nothing was left."
    )


def observe(
    sandbox: Sandbox, chosen: dict[str, Any], record: Samples, minutes: float | None
) -> int:
    """Run the pair and take a sample at each stop; return the number of rounds."""
    process = sandbox.start(
        sys.executable,
        str(PAIR),
        json.dumps(chosen),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=sandbox.environment(),
    )
    progress = progress_of(chosen["rounds"], minutes)
    began, is_over = time.monotonic(), False
    with process.stdin, process.stdout:
        for stop in stops(process):
            if "failed" in stop:
                raise NotHeld(f"With seed {chosen['seed']}, {stop['failed']}")
            sample(sandbox, stop, record["samples"])
            passed = time.monotonic() - began
            if minutes is None:
                progress.at(stop["round"])
            else:
                progress.at(round(passed), f", {stop['round']} rounds")
                is_over = passed > 60 * minutes
            process.stdin.write(f"{THE_LAST if is_over else ''}\n".encode())
            process.stdin.flush()
    progress.end()
    wait_until(lambda: sandbox.status_of(process.pid) is not None, GRACE)
    status = sandbox.status_of(process.pid)
    reached: int = max(record["samples"]["round"], default=0)
    if status != 0 or (reached != chosen["rounds"] and not is_over):
        raise NotHeld(
            f"The owner ended with status {status} after round {reached}; what it "
            "wrote is above."
        )
    return reached


def progress_of(rounds: int, minutes: float | None) -> records.Progress:
    """Return the progress line for a number of rounds or for a time."""
    if minutes is None:
        return records.Progress(rounds, "rounds")
    return records.Progress(round(60 * minutes), "seconds")


def stops(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the messages of the owner at its stops. Raises `NotHeld` if it hangs."""
    assert process.stdout is not None, "it was started with a pipe"
    while True:
        if not select.select([process.stdout], [], [], DEADLINE)[0]:
            raise NotHeld(f"The pair made no progress for {DEADLINE:g} seconds.")
        line = process.stdout.readline()
        if not line:
            return
        yield json.loads(line)


def sample(sandbox: Sandbox, stop: dict[str, Any], samples: Samples) -> None:
    """Record the resources of owner, peer and manager, and the number of names."""
    watched = {"owner": stop["owner"], "peer": stop["peer"]}
    managers = sandbox.managers()
    if len(managers) > 1:
        count = len(managers)
        raise NotHeld(f"After round {stop['round']} there are {count} managers.")
    if managers:
        watched["manager"] = managers[0]
    samples["round"].append(stop["round"])
    # The manager removes a little later what two processes have dropped at once.
    wait_until(lambda: not segments_of(sandbox), GRACE)
    segments = segments_of(sandbox)
    samples["names"].append(len(segments))
    samples["semaphores"].append(len(sandbox.names()) - len(segments))
    for role, pid in watched.items():
        empty = {name: [] for name in ResourceCounts._fields}
        columns = samples.setdefault(role, empty)
        for name, value in resources_of(pid)._asdict().items():
            columns[name].append(value)


def segments_of(sandbox: Sandbox) -> list[str]:
    """Return the names of segments that there are."""
    return [name for name in sandbox.names() if not name.startswith("sem.")]


# Judging


def judge(record: Samples) -> None:
    """Raise `NotHeld` if a count changed or memory grew."""
    samples = record["samples"]
    first = sum(number <= record["warm_up"] for number in samples["round"])
    rounds = samples["round"][first:]
    judge_count("names of segments", samples["names"][first:], rounds)
    judge_count("names of semaphores", samples["semaphores"][first:], rounds)
    record["rises"] = {}
    for role in ("owner", "peer", "manager"):
        if role not in samples:
            continue
        for what in COUNTED:
            judge_count(f"{what} of the {role}", samples[role][what][first:], rounds)
        for what in MEASURED:
            rise = rise_of(rounds, samples[role][what][first:])
            record["rises"][f"{role} {what}"] = round(rise, 1)
            judge_rise(f"{what} of the {role}", rise)


def judge_count(what: str, values: Sequence[int], rounds: Sequence[int]) -> None:
    """Raise `NotHeld` unless a count never differs from its first value."""
    other = [place for place, value in enumerate(values) if value != values[0]]
    if other:
        raise NotHeld(
            f"The {what} were {values[0]} after round {rounds[0]} and "
            f"{values[other[0]]} after round {rounds[other[0]]}; at the end they are "
            f"{values[-1]}."
        )


def judge_rise(what: str, rise: float) -> None:
    """Raise `NotHeld` if memory grew by more than the bound."""
    if rise > BOUND:
        raise NotHeld(
            f"The {what} rose by {rise:.0f} KiB over the second half; {BOUND} KiB are "
            "permitted."
        )


def rise_of(rounds: Sequence[int], values: Sequence[int]) -> float:
    """Return the rise of the regression line over the second half of the samples."""
    half = len(rounds) // 2
    x, y = rounds[half:], values[half:]
    if len(x) < 2:
        return 0.0
    return statistics.linear_regression(x, y).slope * (x[-1] - x[0])


if __name__ == "__main__":
    sys.exit(records.run(None, options(), work))
