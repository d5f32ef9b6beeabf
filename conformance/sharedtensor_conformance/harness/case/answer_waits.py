"""How long the suite waits for an answer once many cases have waited in vain.

A request may take as long as the adapter declares. After many unexpected hangs, a run
limits these waits, or it would wait for the same fact in each case. A case in which
such a wait ended is not judged: the answer might have come within the declared time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sharedtensor_conformance.harness.case.outcomes import DeadlineExceeded
from sharedtensor_conformance.harness.kernel.process_tree import prolonged

LAST_LIMIT = 0.5
"""The limit in seconds of further waits of a case after one that ended early."""

STARTS = 3
"""How many processes a request gets the time to start."""


@dataclass
class Wait:
    """A wait for an answer.

    Args:
        limit: seconds after which it ends.
        answered: whether the implementation did what it was asked to.
    """

    limit: float
    answered: bool = False


def unprolonged(seconds: float) -> float:
    """Return what would be prolonged to a time that something has taken here.

    A limit that is made from it is prolonged again.
    """
    return seconds / prolonged(1.0)


class AnswerWaits:
    """The waits for answers in this process of pytest.

    Attributes:
        limit: seconds after which waits end, if that is before the deadline; None if
            they do not.
        ended: the evidence of the first wait of the case that ended so.
        longest: the seconds of the longest wait of the case, without what processes
            wait themselves, and without requests that start processes.
    """

    def __init__(self) -> None:
        self._answered: dict[str, float] = {}  # the longest waits, by request
        self._longest_start = 0.0
        self.reset(None)

    def reset(self, limit: float | None) -> None:
        """Begin a case."""
        self.limit = limit
        self.ended = ""
        self.longest = 0.0

    @contextmanager
    def waiting(
        self,
        request_name: str,
        deadline: float,
        *,
        own: float = 0.0,
        starts: bool = False,
    ) -> Iterator[Wait]:
        """Limit and time a block, which waits for the answer to a request.

        If such an answer has ever taken long, the limit is at least twice as long.

        Args:
            request_name: the name of the request.
            deadline: the seconds that the answer may take.
            own: the seconds of them in which the process may wait itself.
            starts: whether the process may start others, instead.
        """
        more = STARTS * self._longest_start if starts else own
        limit = self._limit(request_name, more)
        wait, started = Wait(min(deadline, limit)), time.monotonic()
        try:
            yield wait
        except DeadlineExceeded as error:
            if wait.limit < deadline:
                self.ended = self.ended or str(error)
            raise
        finally:
            seconds = time.monotonic() - started
            if not starts:
                self.note(seconds - own)
            if wait.answered:
                before = self._answered.get(request_name, 0.0)
                self._answered[request_name] = max(before, unprolonged(seconds))

    def note(self, seconds: float) -> None:
        """Note how long the case waited for something."""
        self.longest = max(self.longest, seconds)

    def _limit(self, request_name: str, more: float) -> float:
        if self.limit is None:
            return math.inf
        if self.ended:  # the case is not judged any more
            return LAST_LIMIT
        slowest = self._answered.get(request_name, 0.0)
        return round(max(self.limit + more, 2 * slowest), 1)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Time a block that starts a process and waits until it can be asked."""
        started = time.monotonic()
        yield
        taken = unprolonged(time.monotonic() - started)
        self._longest_start = max(self._longest_start, taken)


answer_waits = AnswerWaits()
