"""Divides the cases of a configuration into batches that can run at the same time.

The cases of a batch share their processes, so one worker of pytest-xdist runs all of
them, in order. If a process takes seconds to start, the cases of one configuration can
take longer than those of all others together. Batches of it can run on any free worker.

Cases that run last judge what other cases left behind, so they run at the end of each
batch. Cases of one known deviation are in the same batch, because a worker shows each
known deviation once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, fsum, inf

from sharedtensor_conformance.harness.case.axes import Configuration
from sharedtensor_conformance.plugin.enumeration import PlannedCase

BATCHES_PER_WORKER = 2
"""How many batches each worker gets, if all batches take the same time."""

MIN_BATCH_SECONDS = 3.0
"""The minimum duration of a batch in seconds; starting its processes costs time."""


@dataclass(frozen=True)
class Batches:
    """The assignment of cases to batches.

    Args:
        numbers: the batch number of each case in its configuration, by case id. Cases
            that run last have none, because they are in each batch.
        seconds: the durations of the batches of each configuration, by its id.
    """

    numbers: dict[str, int]
    seconds: dict[str, list[float]]

    def count(self, configuration: Configuration) -> int:
        """Return how many batches a configuration has.

        It is 1 for a configuration without cases that share processes, and for one that
        cannot run here.
        """
        return len(self.seconds.get(configuration.id, [0.0]))

    def number_of(self, case: PlannedCase) -> int:
        """Return the batch of a case; for a case that runs last, the first batch."""
        return self.numbers.get(case.id, 0)

    def all_of(self, case: PlannedCase) -> Iterable[int]:
        """Return the batches in which a case runs; all, if it runs last."""
        if case.marking.runs_last:
            return range(self.count(case.configuration))
        return [self.number_of(case)]


def batches_of(
    cases: Sequence[PlannedCase],
    workers: int,
    seconds: Callable[[PlannedCase], float],
    cause: Callable[[PlannedCase], Hashable | None],
) -> Batches:
    """Return the batches for a run with so many workers.

    Args:
        cases: the cases of the run.
        workers: how many cases run at the same time.
        seconds: returns the expected duration of a case.
        cause: returns a key that the cases of one known deviation share, or None.
    """
    shortest = MIN_BATCH_SECONDS if workers > 1 else inf
    return divided(cases, BATCHES_PER_WORKER * workers, shortest, seconds, cause)


def divided(
    cases: Sequence[PlannedCase],
    parts: int,
    shortest: float,
    seconds: Callable[[PlannedCase], float],
    cause: Callable[[PlannedCase], Hashable | None] = lambda case: None,
) -> Batches:
    """Return batches of the cases that share processes.

    A batch takes about as long as one of so many equal `parts` of all cases, and not
    less than `shortest`. The result depends only on the arguments, in whatever order
    the cases are, so that all workers and machines compute the same.
    """
    units = _units([case for case in cases if case.shares_processes], seconds, cause)
    alone = [seconds(case) for case in cases if not case.shares_processes]
    whole = {name: fsum(unit.seconds for unit in some) for name, some in units.items()}
    longest = max(fsum([*alone, *whole.values()]) / parts, shortest)
    found = Batches({}, {})
    for configuration, its_units in units.items():
        count = max(1, ceil(whole[configuration] / longest))
        taken = found.seconds[configuration] = [0.0] * count
        for unit in its_units:
            number = taken.index(min(taken))
            taken[number] += unit.seconds
            found.numbers.update(dict.fromkeys(unit.ids, number))
    return found


@dataclass(frozen=True)
class _Unit:
    """Cases that have to be in the same batch."""

    ids: tuple[str, ...]
    seconds: float


def _units(
    cases: Iterable[PlannedCase],
    seconds: Callable[[PlannedCase], float],
    cause: Callable[[PlannedCase], Hashable | None],
) -> dict[str, list[_Unit]]:
    """Return the units of each configuration, the longest first, by its id."""
    groups: defaultdict[str, defaultdict[Hashable, list[PlannedCase]]]
    groups = defaultdict(lambda: defaultdict(list))
    for case in cases:
        of_configuration = groups[case.configuration.id]
        if not case.marking.runs_last:
            of_configuration[cause(case) or case.id].append(case)
    return {
        configuration: sorted(
            (
                _Unit(tuple(sorted(c.id for c in group)), min(map(seconds, group)))
                for group in of_configuration.values()
            ),
            key=lambda unit: (-unit.seconds, unit.ids),
        )
        for configuration, of_configuration in groups.items()
    }
