"""Cuts the cases of a configuration into batches, which can run at the same time.

The cases of a batch share their processes, so one worker of pytest-xdist runs all of
them, in order. Where a process takes seconds to start, the cases of one configuration
can take longer than those of all others; in batches they run wherever a worker is free.

Cases that run last judge what others left: they run at the end of each batch. Cases of
one known deviation stay together, since it is shown once by a worker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from sharedtensor_conformance.harness.matrix import Configuration
from sharedtensor_conformance.plugin.enumeration import PlannedCase

PER_WORKER = 2
"""Of batches of equal length, each worker would get so many."""

SHORTEST = 3.0
"""Seconds; a shorter batch is not worth processes of its own."""


@dataclass(frozen=True)
class Batches:
    """Which case is in which batch.

    Args:
        numbers: the number of the batch of a case in its configuration, by its id; not
            of those that run last, which are in each.
        seconds: how long the batches of a configuration take, by its id.
    """

    numbers: dict[str, int]
    seconds: dict[str, list[float]]

    def count(self, configuration: Configuration) -> int:
        """Return how many batches a configuration has; one where none of its cases is.

        So has what cannot run there.
        """
        return len(self.seconds.get(configuration.id, [0.0]))

    def number_of(self, case: PlannedCase) -> int:
        """Return the batch that a case is in; the first of those that run last."""
        return self.numbers.get(case.id, 0)


def batches_of(
    cases: Sequence[PlannedCase],
    workers: int,
    seconds: Callable[[PlannedCase], float],
    cause: Callable[[PlannedCase], Hashable | None],
) -> Batches:
    """Return the batches of the cases that share processes.

    It depends on its arguments alone, so that all workers cut alike.

    Args:
        cases: the cases of a run.
        workers: how many run cases at the same time.
        seconds: what a case is expected to take.
        cause: what cases have in common of which only one is run; None for others.
    """
    sharing = [case for case in cases if case.shares_processes]
    alone = sum(map(seconds, cases)) - sum(map(seconds, sharing))
    units = _units(sharing, seconds, cause)
    total = alone + sum(unit.seconds for one in units.values() for unit in one)
    longest = max(total / (PER_WORKER * workers), SHORTEST)
    found = Batches({}, {})
    for configuration, its_units in units.items():
        whole = sum(unit.seconds for unit in its_units)
        count = 1 if workers == 1 else max(1, -int(-whole // longest))
        taken = found.seconds[configuration] = [0.0] * count
        for unit in sorted(its_units, key=lambda one: (-one.seconds, one.ids[0])):
            number = taken.index(min(taken))
            taken[number] += unit.seconds
            found.numbers.update(dict.fromkeys(unit.ids, number))
    return found


@dataclass(frozen=True)
class _Unit:
    """Cases that stay together."""

    ids: tuple[str, ...]
    seconds: float


def _units(
    cases: Iterable[PlannedCase],
    seconds: Callable[[PlannedCase], float],
    cause: Callable[[PlannedCase], Hashable | None],
) -> dict[str, list[_Unit]]:
    """Return what stays together, by the id of its configuration."""
    groups: defaultdict[str, defaultdict[Hashable, list[PlannedCase]]]
    groups = defaultdict(lambda: defaultdict(list))
    for case in cases:
        of_configuration = groups[case.configuration.id]
        if not case.marking.runs_last:
            of_configuration[cause(case) or case.id].append(case)
    return {
        configuration: [
            _Unit(tuple(case.id for case in group), min(map(seconds, group)))
            for group in of_configuration.values()
        ]
        for configuration, of_configuration in groups.items()
    }
