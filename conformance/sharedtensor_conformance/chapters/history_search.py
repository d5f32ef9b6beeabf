"""Searches random histories for one that fails, and shortens it.

A history is a list of steps, drawn at random from a list of their kinds. Frequent kinds
occur several times in that list. A step is data: its kind, and the seed of the
`Choices` by which it picks its objects. If nothing fits, it does nothing. So every part
of a history is a history too.

A history that fails is shortened by leaving out steps, as in delta debugging (Zeller
and Hildebrandt, 2002). The shortest ones are then run again in new processes. The
report of the failure shows the history, one action on each line.

A library for property tests is not used. It would begin with the simplest examples, and
most of a few histories would be simple; and it would take a history that fails only
after others for an error of the test.
"""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from sharedtensor_conformance.harness.case.listening import listener
from sharedtensor_conformance.harness.case.outcomes import (
    ActorDied,
    Broken,
    CheckFailed,
    DeadlineExceeded,
    HarnessFault,
    RemoteRaised,
)

SHRINK_TIMEOUT = 5.0
"""Seconds after a failure during which shorter histories are tried."""

CONFIRM_COUNT = 3
"""How many of the shortest failing histories are run again in new processes."""

HISTORY_LENGTH = (14, 30)
"""The smallest and largest number of steps, including those that do nothing."""

HARNESS_ERRORS = (CheckFailed, ActorDied, DeadlineExceeded, HarnessFault, RemoteRaised)
"""Exceptions of the harness, whose messages say enough.

Any other exception is an error of the suite, and is reported with its traceback.
"""

T = TypeVar("T")


class NothingFits(Exception):
    """Nothing that is there fits a step, which then does nothing."""


class Choices:
    """The choices of one step, the same for a seed. All are equally likely."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def number(self, limit: int) -> int:
        """Return a number from 0 to `limit` - 1."""
        return int(self._random.random() * limit)

    def one_in(self, count: int) -> bool:
        """Return true in one of `count` cases."""
        return self.number(count) == 0

    def of(self, fitting: Sequence[T]) -> T:
        """Return one of the objects that fit.

        Raises:
            NothingFits: there is none.
        """
        if not fitting:
            raise NothingFits
        return fitting[self.number(len(fitting))]


Step = tuple[str, int]
"""A kind of step, and the seed of its choices."""

History = list[Step]
"""The steps of a history."""


class HistoryFailed(Exception):
    """A history failed: a check, a process or the suite itself.

    Args:
        error: the exception that ended the history.
        script: the history, one action on each line.
        clauses: the clauses that the failed check is about, the most specific first;
            empty if that is not known.
    """

    def __init__(
        self, error: Exception, script: str, clauses: tuple[str, ...] = ()
    ) -> None:
        super().__init__(script)
        self.error = error
        self.script = script
        self.clauses = clauses

    def as_outcome(self, what: str) -> Exception:
        """Return an exception with the same verdict and the history in its message.

        `what` describes the history, for example as the shortest one that was found.
        """
        outcome = self._outcome_type()(f"{self._message()}; {what}:\n{self}")
        if isinstance(outcome, Broken):
            outcome.clauses = self.clauses
        return outcome

    def _outcome_type(self) -> type[Exception]:
        if isinstance(self.error, CheckFailed | RemoteRaised):
            return CheckFailed
        types = (ActorDied, DeadlineExceeded)
        return next((one for one in types if isinstance(self.error, one)), HarnessFault)

    def _message(self) -> str:
        if isinstance(self.error, HARNESS_ERRORS):
            return str(self.error)
        return "".join(traceback.format_exception(self.error)).strip()


class HistoryRunner(Protocol):
    """Runs histories in processes, and can replace the processes by new ones."""

    def run(self, steps: History, /) -> HistoryFailed | None:
        """Run a history; return its failure, or None if it did not fail."""
        ...

    def renew(self) -> None:
        """Replace the processes by new ones, now or when the next history is run."""
        ...


def draw_history(kinds: Sequence[str], rng: random.Random) -> History:
    """Return a random history of these kinds of steps.

    Its last step determines how the history ends.
    """
    drawn = [*rng.choices(kinds, k=rng.randint(*HISTORY_LENGTH)), "ending"]
    return [(kind, rng.getrandbits(32)) for kind in drawn]


def search_histories(
    draw: Callable[[random.Random], History],
    runner: HistoryRunner,
    count: int,
    seed: int,
) -> None:
    """Run `count` random histories, the same for the same `seed`.

    Raises:
        CheckFailed, ActorDied, DeadlineExceeded, HarnessFault: a history failed. The
            message contains the shortest failing one that was found.
    """
    rng = random.Random(seed)
    for _ in range(count):
        steps = draw(rng)
        if failed := runner.run(steps):
            raise confirm(runner, [(steps, failed), *shorten(runner, steps)])


def shorten(
    runner: HistoryRunner, steps: History
) -> Iterator[tuple[History, HistoryFailed]]:
    """Yield failing histories, each with fewer steps than the one before.

    Parts of the history are left out, first large ones and then smaller ones, until
    `SHRINK_TIMEOUT` has passed or no single step can be left out.
    """
    deadline = time.monotonic() + SHRINK_TIMEOUT
    size = max(1, len(steps) // 2)
    start = 0
    while time.monotonic() < deadline:
        if start >= len(steps):
            if size == 1:
                return
            size, start = size // 2, 0
            continue
        fewer = steps[:start] + steps[start + size :]
        if failed := runner.run(fewer):
            steps = fewer
            yield steps, failed
        else:
            start += size


def confirm(
    runner: HistoryRunner, failures: list[tuple[History, HistoryFailed]]
) -> Exception:
    """Return the outcome of the shortest history that fails in new processes.

    If none of them does, return the outcome of the history that failed first. Its
    failure then depends on the histories before it.
    """
    by_length = sorted(failures, key=lambda one: len(one[1].script))
    for steps, _ in by_length[:CONFIRM_COUNT]:
        listener().attempt_began()
        runner.renew()
        if failed := runner.run(steps):
            return failed.as_outcome("the shortest history that was found")
    _, first = failures[0]
    return first.as_outcome("it took what went before it, and this history")
