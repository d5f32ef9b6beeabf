"""How random histories are looked through for one that fails, and how that is told.

A history is a list of steps, drawn at random from a list of their kinds, in which the
frequent ones stand several times. Each number is as likely as any other: a library for
property tests would begin with the simplest examples, and most of a few histories would
be those. A history that fails is shortened by leaving steps out, as in delta debugging
(Zeller and Hildebrandt, 2002), and the shortest ones are confirmed in new processes. A
failure is printed as the lines of a test, so that they can be pasted into one.
"""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from sharedtensor_conformance.harness.listening import listener
from sharedtensor_conformance.harness.outcomes import (
    ActorDied,
    Broken,
    CheckFailed,
    DeadlineExceeded,
    HarnessFault,
    RemoteRaised,
)

SHRINK_TIMEOUT = 5.0
"""Seconds after a failure in which a shorter history is looked for."""

CONFIRMED = 3
"""How many of the shortest histories are taken again in new processes."""

FAILURES = (CheckFailed, ActorDied, DeadlineExceeded, HarnessFault, RemoteRaised)
"""What comes of a process that is wrong; any other exception is the suite's own."""


class HistoryFailed(Exception):
    """A history did not come to what the model says.

    Args:
        error: what was raised.
        script: the history, in the words of a test.
        clauses: those that the failed statement is about, where that is known.
    """

    def __init__(
        self, error: Exception, script: str, clauses: tuple[str, ...] = ()
    ) -> None:
        super().__init__(script)
        self.error = error
        self.script = script
        self.clauses = clauses

    def as_outcome(self, what: str) -> Exception:
        """Return an error of the same verdict that tells the history."""
        outcome = self._kind()(f"{self._said()}; {what}:\n{self}")
        if isinstance(outcome, Broken):
            outcome.clauses = self.clauses
        return outcome

    def _kind(self) -> type[Exception]:
        if isinstance(self.error, CheckFailed | RemoteRaised):
            return CheckFailed
        kinds = (ActorDied, DeadlineExceeded)
        return next((k for k in kinds if isinstance(self.error, k)), HarnessFault)

    def _said(self) -> str:
        if isinstance(self.error, FAILURES):
            return str(self.error)
        return "".join(traceback.format_exception(self.error)).strip()


Steps = list[Any]

Step = tuple[str, int, int, int]
"""A kind of step and what it picks."""


def drawn(chance: random.Random, kind: str, below: int) -> Step:
    """Return a step of a kind; what it picks by is below a number."""
    first, second, third = (chance.randrange(below) for _ in range(3))
    return kind, first, second, third


class Takes(Protocol):
    """What takes histories: processes, new ones where they are needed."""

    def take(self, steps: Steps, /) -> HistoryFailed | None:
        """Let the processes take a history; return how it failed."""
        ...

    def renew(self) -> None:
        """Start new processes."""
        ...


def search(
    draw: Callable[[random.Random], Steps], processes: Takes, count: int, seed: int
) -> None:
    """Let the processes take `count` histories, as `draw` makes them of chance.

    Raises:
        CheckFailed, ActorDied, DeadlineExceeded, HarnessFault: one of them failed; the
            shortest one that was found is told.
    """
    chance = random.Random(seed)
    for _ in range(count):
        steps = draw(chance)
        if failed := processes.take(steps):
            raise confirmed(processes, [(steps, failed), *shorter(processes, steps)])


def shorter(processes: Takes, steps: Steps) -> Iterator[tuple[Steps, HistoryFailed]]:
    """Yield histories that fail too, each with fewer of the steps than the one before.

    Ever smaller parts are left out, until the time is over.
    """
    until = time.monotonic() + SHRINK_TIMEOUT
    size = max(1, len(steps) // 2)
    begin = 0
    while time.monotonic() < until:
        if begin >= len(steps):
            if size == 1:
                return
            size, begin = size // 2, 0
            continue
        fewer = steps[:begin] + steps[begin + size :]
        if failed := processes.take(fewer):
            steps = fewer
            yield steps, failed
        else:
            begin += size


def confirmed(processes: Takes, found: list[tuple[Steps, HistoryFailed]]) -> Exception:
    """Return the outcome of the shortest history that fails in new processes.

    Where none does, what failed first is told: it needed what went before it.
    """
    by_length = sorted(found, key=lambda one: len(one[1].script))
    for steps, _ in by_length[:CONFIRMED]:
        listener().began_anew()
        processes.renew()
        if failed := processes.take(steps):
            return failed.as_outcome("the shortest history that was found")
    _, first = found[0]
    return first.as_outcome("it took what went before it, and this history")
