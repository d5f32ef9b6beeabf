"""The outer bound: however a case hangs, the run goes on or at least ends.

Each request has a deadline of its own, so nothing here should ever happen. A case that
takes too long all the same loses its processes, which ends whatever waits for them;
where even that does not help, since it is the suite itself that hangs, the run prints
where it was and exits. Supervisors end when the run has gone, so nothing is left then.
"""

from __future__ import annotations

import faulthandler
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sharedtensor_conformance.adapter import Implementation


def case_limit(implementation: Implementation) -> float:
    """Return the seconds that a case may take: far more than one can need.

    A case that hangs is repeated once, so it waits for two starts and two answers.
    """
    return 2 * implementation.patience + 20 * implementation.deadline


class Watchdog:
    """Ends what takes too long, by ending the processes that are waited for.

    Args:
        limit: seconds; after as long again the process exits with status 1.
        end_processes: does so; called in a thread.
        stderr: the descriptor to which the exit is explained.
    """

    def __init__(
        self, limit: float, end_processes: Callable[[], None], stderr: int = 2
    ) -> None:
        self.limit = limit
        self.end_processes = end_processes
        self.stderr = stderr
        self.expired = False

    @property
    def evidence(self) -> str:
        """What is said of a case whose processes were taken away."""
        return (
            f"it took longer than {self.limit:g} s as a whole; the watchdog ended "
            f"its processes"
        )

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch over the block."""
        self.expired = False
        timer = threading.Timer(self.limit, self._expire)
        timer.daemon = True
        timer.start()
        faulthandler.dump_traceback_later(2 * self.limit, exit=True, file=self.stderr)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            timer.cancel()

    def _expire(self) -> None:
        self.expired = True
        self.end_processes()
