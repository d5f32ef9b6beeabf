"""The outer time limit of a case, which ends a case or the run if anything hangs.

Each request has its own deadline, so this limit should never be reached. If a case
takes too long nevertheless, the watchdog kills its processes, which ends every wait for
them. If that does not help, because the suite itself hangs, the run prints its stacks
and exits. Supervisors end when the run has ended, so nothing is left.
"""

from __future__ import annotations

import faulthandler
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sharedtensor_conformance.adapter import Implementation


def case_limit(implementation: Implementation) -> float:
    """Return the time limit of a case in seconds: far more than a case needs.

    A case that hangs is repeated once, so it waits for two starts and two answers.
    """
    return 2 * implementation.patience + 20 * implementation.deadline


class Watchdog:
    """Ends a case that takes too long, by ending its processes.

    Args:
        limit: the limit in seconds; after twice this time, this process exits with
            status 1.
        end_processes: ends the processes of the case; called in a thread.
        stderr: the descriptor for the message about the exit.
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
        """The evidence of a case whose processes were ended by the watchdog."""
        return (
            f"it took longer than {self.limit:g} s as a whole; the watchdog ended "
            f"its processes"
        )

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Limit the time of the block."""
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
