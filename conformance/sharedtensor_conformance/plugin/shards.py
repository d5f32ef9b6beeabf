"""Divides a selection into shards that run on different machines.

pytest-split and pytest-shard assign each test to a shard independently. Here, the cases
of a configuration share processes, and the cases that run last have to be in each shard
with cases that they judge. So whole batches are assigned, and cases that are in none.

Every machine computes the same shards, because they depend only on the cases, their
recorded durations and the number of shards.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from math import fsum

from sharedtensor_conformance.plugin.batches import divided
from sharedtensor_conformance.plugin.enumeration import PlannedCase

BATCHES_PER_SHARD = 4
"""A batch takes at most this fraction of a shard: 1/4.

One worker runs such a batch, so a shard needs several of them to keep workers busy.
"""

SHORTEST = 0.001
"""The seconds that a case counts at least, so that cases of no duration spread out."""


def shard(text: str) -> tuple[int, int]:
    """Return the number of a shard, from 1, and the number of shards.

    Raises:
        argparse.ArgumentTypeError: the text has another form.
    """
    found = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a shard: give I/N, for example 2/8"
        )
    return int(found[1]), int(found[2])


def shards_of(
    cases: Sequence[PlannedCase], count: int, seconds: Callable[[PlannedCase], float]
) -> list[tuple[PlannedCase, ...]]:
    """Return the cases of each shard, in order.

    Each case is in one shard, except those that run last: they are in each shard with
    cases that they judge.
    """

    def cost(case: PlannedCase) -> float:
        return max(seconds(case), SHORTEST)

    batches = divided(cases, BATCHES_PER_SHARD * count, 0.0, cost)
    pieces: defaultdict[tuple[str, int], list[PlannedCase]] = defaultdict(list)
    for case in cases:
        whose = case.configuration.id if case.shares_processes else case.id
        for number in batches.all_of(case) if case.shares_processes else [0]:
            pieces[whose, number].append(case)
    costs = {place: fsum(map(cost, piece)) for place, piece in pieces.items()}
    taken, ids = [0.0] * count, [set[str]() for _ in range(count)]
    for place in sorted(pieces, key=lambda place: (-costs[place], place)):
        least = taken.index(min(taken))
        taken[least] += costs[place]
        ids[least].update(case.id for case in pieces[place])
    return [tuple(case for case in cases if case.id in chosen) for chosen in ids]


def digest(shards: Iterable[Iterable[PlannedCase]]) -> str:
    """Return a digest of which cases are in which shard."""
    lines = (
        f"{number} {case.id}\n"
        for number, cases in enumerate(shards, 1)
        for case in sorted(cases, key=lambda one: one.id)
    )
    return sha256("".join(lines).encode()).hexdigest()[:12]
