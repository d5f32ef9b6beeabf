"""A lock for state that finalizers change as well.

Python runs finalizers wherever the garbage collector strikes: in any thread, between
any two operations, also in a thread that holds the very lock that the finalizer needs.
A finalizer that waits for a lock can therefore wait for itself.

Here it queues a job instead, which is an atomic operation. If the lock is free the
job runs at once, and else when the holder releases it: the holder looks at the queue
once more after that. Either it sees the new job, or the job came later, and then the
lock was free for the thread that queued it. No job is stranded and no finalizer waits.

Calls of C alone acquire and release the lock: see `atomic`. Otherwise an exception of a
signal handler could leave it locked (clause FAULT-2).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from . import atomic
from .atomic import Arguments, Result
from .errors import pass_on

Job = Callable[[], object]


class FinalizerLock:
    """A lock with a queue of jobs that need it. It is not to be taken twice.

    Queued jobs run one after the other: before what `run` is given, and after it. An
    error of a job does not reach the thread that happens to run it; it is reported like
    that of any finalizer, by `sys.unraisablehook`.

    Attributes:
        jobs: what is queued, the next one first. A job leaves it when it is done.
    """

    def __init__(self) -> None:
        self.jobs: deque[Job] = deque()
        self._lock = threading.RLock()  # it knows its owner

    def is_owned(self) -> bool:
        """Return whether this thread holds the lock."""
        return self._lock._is_owned()  # type: ignore[attr-defined,no-any-return]

    def run(
        self, work: Callable[[*Arguments], Result], *arguments: *Arguments
    ) -> Result:
        """Return what a function returns that is called under the lock.

        The caller sees to it that its thread does not hold the lock.
        """
        try:
            return atomic.under(self._lock, self._run_after_queued, work, *arguments)
        finally:
            self._run_if_free()

    def run_soon(self, job: Job) -> None:
        """Run a job under the lock, now or when it is next released; never wait.

        For finalizers, and for what a thread that holds the lock wants done after.
        """
        self.jobs.append(job)
        self._run_if_free()

    def _run_after_queued(
        self, work: Callable[[*Arguments], Result], *arguments: *Arguments
    ) -> Result:
        self._run_queued()
        return work(*arguments)

    def _run_queued(self) -> None:
        while self.jobs:
            try:
                self.jobs[0]()
            except Exception as error:
                pass_on(error)
                _Failed(error)
            self.jobs.popleft()

    def _run_if_free(self) -> None:
        while self.jobs and not self.is_owned():
            if not atomic.under_if_free(self._lock, self._run_queued):
                return  # its holder looks at the queue


class _Failed:
    """Raises an error in its own finalizer, where the interpreter reports it."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __del__(self) -> None:
        raise self._error
