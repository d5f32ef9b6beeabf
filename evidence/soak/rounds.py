"""Has a group share tensors again and again, and counts what it holds.

In each round the group (see `sharer`) works: over all channels, with tensors of 0 to
some hundred thousand bytes, several tensors in one message, views, grads, and messages
that are refused. Every value is verified. At intervals the members receive all messages
and drop everything. Then this process reads in `/proc` the resources of each member and
of the manager, without using the implementation.

After the warm-up, every sample has to be equal to the first one in descriptors,
mappings, threads and names. Memory must not grow: the regression line through the
samples of the second half rises by at most `BOUND`. At the end nothing is left.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import recording
from group import CHANNELS, GRACE, STRATEGIES, Group, Plan
from recording import NotHeld
from sandbox import ResourceCounts, Sandbox, resources_of
from sharedtensor_conformance.cli.command import positive
from sharedtensor_conformance.harness.kernel.private_shm import mount_if_permitted
from sharedtensor_conformance.harness.kernel.process_tree import wait_until

ROLES = ("owner", "peer", "second peer")
FLOOD = 1000  # messages: more than a channel takes
COUNTED = ("descriptors", "mappings", "threads")
MEASURED = ("memory", "heap")
BOUND = 1024  # KiB over the second half of the samples
LONG = 200  # rounds: in fewer, memory still grows as processes warm up
WARM_UP = 20  # rounds; a tenth of the run if that is less

Samples = dict[str, Any]


def options() -> recording.Parser:
    """Return the parser of the command line."""
    parser = recording.Parser(__doc__, prog="rounds")
    add = parser.add_argument
    text = "how many rounds (default: %(default)s)"
    add("--rounds", type=positive(int), default=1000, help=text)
    text = "run for this time instead of a number of rounds"
    add("--minutes", type=float, default=None, help=text)
    add("--every", type=positive(int), help="rounds between samples")
    text = "the sharing strategy (default: %(default)s)"
    add("--strategy", choices=STRATEGIES, default=STRATEGIES[0], help=text)
    text = "the start method (default: %(default)s)"
    methods = ("fork", "spawn", "forkserver")
    add("--start-method", choices=methods, default="spawn", help=text)
    text = "the seed of all random choices (default: %(default)s)"
    add("--seed", type=int, default=1, help=text)
    text = "apply this mutant to the reference; the run then has to fail"
    add("--mutant", default="", help=text)
    return parser


def work(given: argparse.Namespace, record: dict[str, Any]) -> str:
    """Run the rounds; return the sentence of what held."""
    rounds = given.rounds if given.minutes is None else sys.maxsize
    every = given.every or max(1, given.rounds // 100)
    record |= {"strategy": given.strategy, "start_method": given.start_method}
    record |= {"every": every, "seed": given.seed, "mutant": given.mutant}
    record |= {"warm_up": min(WARM_UP, rounds // 10), "bound": BOUND}
    record["samples"] = {"round": [], "names": [], "semaphores": []}
    plan = Plan(given.seed, given.strategy, given.start_method, CHANNELS, "leave")
    with Sandbox(mount_if_permitted) as sandbox:
        record["private_shm"] = sandbox.has_private_shm
        with Group(sandbox, plan, GRACE, given.mutant) as group:
            run_rounds(group, record, rounds, given.minutes)
    judge(record)
    return (
        f"{record['rounds']} rounds under {given.strategy}: all values were right, "
        f"counts stayed as they were after {record['warm_up']} rounds, memory rose by "
        f"no more than {BOUND} KiB, and nothing was left."
    )


def run_rounds(
    group: Group, record: Samples, rounds: int, minutes: float | None
) -> None:
    """Have the group work, take a sample at intervals, and end it."""
    until = None if minutes is None else time.monotonic() + 60 * minutes
    progress = recording.Progress(rounds, "rounds")
    is_over, number = False, 0
    try:
        group.start()
        flood(group)
        while not is_over:
            number += 1
            group.work(f"{record['seed']} {number}")
            group.have_all("drain")  # else a channel may be full in the end
            progress.at(number)
            is_over = number == rounds
            if is_over or number % record["every"] == 0:
                group.have_all("settle")
                sample(group, number, record["samples"])
                is_over |= until is not None and time.monotonic() > until
                is_over |= has_changed(record)  # each later sample would wait, too
        group.end()
    except NotHeld as error:
        raise NotHeld(f"In round {number} {error}{group.end_of_log()}") from None
    if group.errors:
        raise NotHeld(f"There were errors: {dict(group.errors)}.")
    record["rounds"] = number


def flood(group: Group) -> None:
    """Have the owner's queue start its thread, which would else start in some round."""
    expected = group.counts["received"] + FLOOD
    group.send_order(0, do="flood", count=FLOOD)
    group.collect(0)
    while group.counts["received"] < expected:
        group.have_all("drain")


def sample(group: Group, number: int, samples: Samples) -> None:
    """Record the resources of the members and the manager, and the number of names."""
    watched = {role: group.pids[place] for place, role in enumerate(ROLES)}
    managers = group.managers()
    if len(managers) > 1:
        raise NotHeld(f"there are {len(managers)} managers")
    if managers:
        watched["manager"] = managers[0]
    samples["round"].append(number)
    # The manager removes a little later what two processes have dropped at once.
    wait_until(lambda: not segments_of(group.sandbox), GRACE)
    segments = segments_of(group.sandbox)
    samples["names"].append(len(segments))
    samples["semaphores"].append(len(group.sandbox.names()) - len(segments))
    for role in watched:
        samples.setdefault(role, {name: [] for name in ResourceCounts._fields})
    # The thread of a queue closes a little later what it has written.
    wait_until(
        lambda: all(is_as_before(samples[role], pid) for role, pid in watched.items()),
        GRACE,
    )
    for role, pid in watched.items():
        for name, value in resources_of(pid)._asdict().items():
            samples[role][name].append(value)


def is_as_before(columns: Samples, pid: int) -> bool:
    """Return whether the counts of a process are those of the last sample, if any."""
    now = resources_of(pid)._asdict()
    return all(columns[name][-1:] in ([], [now[name]]) for name in COUNTED)


def has_changed(record: Samples) -> bool:
    """Return whether a count has changed since the warm-up."""
    try:
        judge_counts(record)
    except NotHeld:
        return True
    return False


def segments_of(sandbox: Sandbox) -> list[str]:
    """Return the names of segments that there are."""
    return [name for name in sandbox.names() if not name.startswith("sem.")]


# Judging


def judge(record: Samples) -> None:
    """Raise `NotHeld` if a count changed or memory grew."""
    judge_counts(record)
    samples, first = record["samples"], judged_from(record)
    rounds = samples["round"][first:]
    record["rises"] = {}
    for role in roles_in(samples):
        for what in MEASURED:
            rise = rise_of(rounds, samples[role][what][first:])
            record["rises"][f"{role} {what}"] = round(rise, 1)
            if record["rounds"] >= LONG:
                judge_rise(f"{what} of the {role}", rise)


def judge_counts(record: Samples) -> None:
    """Raise `NotHeld` if a count changed."""
    samples, first = record["samples"], judged_from(record)
    rounds = samples["round"][first:]
    judge_count("names of segments", samples["names"][first:], rounds)
    judge_count("names of semaphores", samples["semaphores"][first:], rounds)
    for role in roles_in(samples):
        for what in COUNTED:
            judge_count(f"{what} of the {role}", samples[role][what][first:], rounds)


def judged_from(record: Samples) -> int:
    """Return the place of the first sample after the warm-up."""
    return sum(number <= record["warm_up"] for number in record["samples"]["round"])


def roles_in(samples: Samples) -> list[str]:
    """Return the roles of which there are samples."""
    return [role for role in (*ROLES, "manager") if role in samples]


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
    sys.exit(recording.run(None, options(), work))
