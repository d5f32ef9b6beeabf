"""A lock for state that finalizers change as well.

Python runs finalizers wherever the garbage collector strikes: in any thread, between
any two operations, also in a thread that holds the very lock that the finalizer needs.
A finalizer that waits for a lock can therefore wait for itself.

Here it queues a job instead, which is an atomic operation. If nobody holds the lock the
job runs at once, and else when the holder releases it: the holder looks at the queue
once more after that. Either it sees the new job, or the job came later, and then the
lock was free for whoever queued it. No job is stranded and no finalizer waits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

Job = Callable[[], object]


class Postponed(Exception):
    """Raised by a job that cannot be done now: it stays the first in the queue."""


class FinalizerLock:
    """A lock, used like `threading.Lock`, with a queue of jobs that need it.

    Queued jobs run in their order: before the body of a section that is entered, and
    after one that is left. An error of a job does not reach the thread that happens to
    run it; it is reported like that of any finalizer, by `sys.unraisablehook`.

    Attributes:
        jobs: what is queued, the next one first. A job leaves it when it is done.
    """

    def __init__(self) -> None:
        self.jobs: deque[Job] = deque()
        self._lock = threading.Lock()
        self._owner: int | None = None

    def is_owned(self) -> bool:
        """Return whether this thread holds the lock; it is not reentrant."""
        return self._owner == threading.get_ident()

    def acquire(self, timeout: float = -1) -> bool:
        """Take the lock and run the queued jobs; return False after the timeout.

        Args:
            timeout: in seconds; -1 waits without a limit.
        """
        if not self._lock.acquire(timeout=timeout):
            return False
        self._owner = threading.get_ident()
        if self.jobs:
            try:
                self.run_queued()
            except BaseException:  # of a job that was interrupted
                self._unlock()
                raise
        return True

    def release(self) -> None:
        """Give the lock up and run what was queued while it was held."""
        self._unlock()
        if self.jobs:
            self._run_if_free()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def run_soon(self, job: Job) -> None:
        """Run a job under the lock, now or when it is next released; never wait.

        For finalizers, and for what a thread that holds the lock wants done after.
        """
        self.jobs.append(job)
        self._run_if_free()

    def run_queued(self) -> bool:
        """Run the queued jobs; return False if one was postponed.

        Called by the holder of the lock.
        """
        while self.jobs:
            job = self.jobs[0]
            try:
                job()
            except Postponed:
                return False
            except Exception as error:
                _Failed(error)
            self.jobs.popleft()
        return True

    def reset(self, keep: Callable[[Job], bool]) -> None:
        """Be a new lock that nobody holds, in a forked child.

        Args:
            keep: which of the parent's jobs the child has to do as well.
        """
        self.jobs = deque(filter(keep, self.jobs))
        self._lock = threading.Lock()
        self._owner = None

    def _run_if_free(self) -> None:
        done = True
        while done and self.jobs and self._lock.acquire(blocking=False):
            self._owner = threading.get_ident()
            try:
                done = self.run_queued()
            finally:
                self._unlock()

    def _unlock(self) -> None:
        self._owner = None
        self._lock.release()


class _Failed:
    """Raises an error in its own finalizer, where the interpreter reports it."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __del__(self) -> None:
        raise self._error
