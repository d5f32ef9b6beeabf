"""How random histories are looked through for one that fails, and how that is told.

Hypothesis invents the histories and shrinks one that fails. Each is taken once, so the
search cannot waver; the shortest ones are confirmed in new processes. What fails is
told in the words of a test, so that it can be pasted into one.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import suppress
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


class Takes(Protocol):
    """What takes histories: processes, new ones where they are needed."""

    def take(self, steps: Any, /) -> HistoryFailed | None:
        """Let the processes take a history; return how it failed."""
        ...

    def renew(self) -> None:
        """Start new processes."""
        ...


def search(histories: Any, processes: Takes, count: int, seed: int) -> None:
    """Let the processes take `count` of these histories.

    Raises:
        CheckFailed, ActorDied, DeadlineExceeded, HarnessFault: one of them failed; the
            shortest one that was found is told.
    """
    import hypothesis  # it takes a while, and other tests do without

    found = _Search(processes.take)

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),  # pyright: ignore[reportArgumentType]
        verbosity=hypothesis.Verbosity.quiet,
    )
    @hypothesis.given(histories)
    def holds(steps: Any) -> None:
        if failed := found.outcome_of(steps):
            raise failed

    with suppress(HistoryFailed, _OutOfTime):
        holds()
    if found.failed:
        raise found.confirmed(processes)


class _OutOfTime(BaseException):
    """The search is over; Hypothesis lets what is no Exception through."""


class _Search:
    """What the histories came to: each is taken once, so the search cannot waver."""

    def __init__(self, take: Callable[[Any], HistoryFailed | None]) -> None:
        self.take = take
        self.known: dict[str, HistoryFailed | None] = {}
        self.failed: list[tuple[Any, HistoryFailed]] = []
        self.until = float("inf")

    def outcome_of(self, steps: Any) -> HistoryFailed | None:
        """Return how a history failed, if it did."""
        key = repr(steps)
        if key not in self.known:
            if time.monotonic() > self.until:
                raise _OutOfTime
            self.known[key] = failed = self.take(steps)
            if failed:
                self.until = min(self.until, time.monotonic() + SHRINK_TIMEOUT)
                self.failed.append((steps, failed))
        return self.known[key]

    def confirmed(self, processes: Takes) -> Exception:
        """Return the outcome of the shortest history that fails in new processes.

        Where none does, what failed first is told: it needed what went before it.
        """
        by_length = sorted(self.failed, key=lambda found: len(found[1].script))
        for steps, _ in by_length[:CONFIRMED]:
            listener().began_anew()
            processes.renew()
            if failed := processes.take(steps):
                return failed.as_outcome("the shortest history that was found")
        first = self.failed[0][1]
        return first.as_outcome("it took what went before it, and this history")
