"""Divides a selection into shards that run on different machines.

pytest-split and pytest-shard assign each test to a shard independently. Here, the cases
of a configuration share processes, and the cases that run last have to be in each shard
with cases that they judge.

Every machine computes the same shards, because they depend only on the cases, their
recorded durations and the number of shards.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from sharedtensor_conformance.plugin.enumeration import PlannedCase

PIECES_PER_SHARD = 4
"""A group of cases of one configuration takes at most this fraction of a shard: 1/4.

One worker runs such a group, so a shard needs several groups to keep workers busy.
"""


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


@dataclass
class _Load:
    """The cases of a shard so far; `cost` is in milliseconds, for exact sums."""

    number: int
    cost: int = 0
    ids: set[str] = field(default_factory=set)
    configurations: set[str] = field(default_factory=set)

    def add(self, cost: int, cases: Iterable[PlannedCase]) -> None:
        self.cost += cost
        self.ids.update(case.id for case in cases)


@dataclass(frozen=True)
class _Piece:
    """Cases of a configuration that stay together, with the cases that judge them."""

    configuration: str
    number: int
    cost: int
    cases: tuple[PlannedCase, ...]


def shards_of(
    cases: Sequence[PlannedCase], count: int, seconds: Callable[[PlannedCase], float]
) -> list[tuple[PlannedCase, ...]]:
    """Return the cases of each shard, in order.

    Each case is in one shard, except those that run last: they are in each shard with
    cases that they judge.
    """
    costs = {case.id: max(1, round(1000 * seconds(case))) for case in cases}
    loads = [_Load(number) for number in range(count)]
    in_order = sorted(cases, key=lambda case: case.id)
    for piece in sorted(_pieces(in_order, count, costs), key=_largest_first):
        others = [one for one in loads if piece.configuration not in one.configurations]
        load = _least(others)
        load.configurations.add(piece.configuration)
        load.add(piece.cost, piece.cases)
    single = [case for case in cases if not case.shares_processes]
    for case in sorted(single, key=lambda one: (-costs[one.id], one.id)):
        _least(loads).add(costs[case.id], [case])
    return [tuple(case for case in cases if case.id in one.ids) for one in loads]


def _least(loads: Iterable[_Load]) -> _Load:
    return min(loads, key=lambda load: (load.cost, load.number))


def _largest_first(piece: _Piece) -> tuple[int, str, int]:
    return (-piece.cost, piece.configuration, piece.number)


def _pieces(
    cases: Sequence[PlannedCase], count: int, costs: dict[str, int]
) -> list[_Piece]:
    limit = sum(costs.values()) / (PIECES_PER_SHARD * count)
    groups: defaultdict[str, list[PlannedCase]] = defaultdict(list)
    for case in cases:
        if case.shares_processes:
            groups[case.configuration.id].append(case)
    found = []
    for configuration, group in groups.items():
        last = [case for case in group if case.marking.runs_last]
        first = [case for case in group if not case.marking.runs_last]
        for number, part in enumerate(_parts(first, count, limit, costs) or [[]]):
            together = (*part, *last)
            cost = sum(costs[case.id] for case in together)
            found.append(_Piece(configuration, number, cost, together))
    return found


def _parts(
    cases: Sequence[PlannedCase], count: int, limit: float, costs: dict[str, int]
) -> list[list[PlannedCase]]:
    """Return the cases in at most `count` parts of equal cost, about `limit` each."""
    total = sum(costs[case.id] for case in cases)
    wanted = min(count, -int(-total // limit)) if cases else 0
    parts: list[list[PlannedCase]] = [[] for _ in range(wanted)]
    passed = 0
    for case in cases:
        middle = passed + costs[case.id] / 2
        parts[int(middle * wanted / total)].append(case)
        passed += costs[case.id]
    return [part for part in parts if part]


def digest(shards: Iterable[Iterable[PlannedCase]]) -> str:
    """Return a digest of which cases are in which shard."""
    lines = (
        f"{number} {case.id}\n"
        for number, cases in enumerate(shards, 1)
        for case in sorted(cases, key=lambda one: one.id)
    )
    return sha256("".join(lines).encode()).hexdigest()[:12]
