"""Mutual exclusion whose finalizers never wait.

Python runs finalizers wherever the collector happens to strike, also inside a
region that holds a lock, so a finalizer that waits for that lock hangs. Here it
hands its job to the gate: the job runs at once if nobody is inside, and else
when whoever is inside leaves.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace, TracebackType


class Gate:
    """One thread of this process inside at a time; not reentrant."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: deque[Callable[[], None]] = deque()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()
        self._run_jobs()

    def soon(self, job: Callable[[], None]) -> None:
        """Run a job inside the gate, now or when it is next left; never wait."""
        self._jobs.append(job)
        self._run_jobs()

    def _run_jobs(self) -> None:
        # Looking again after the release closes the gap in which a job is
        # appended behind the last look of the thread that was inside.
        while self._jobs and self._lock.acquire(blocking=False):
            try:
                while self._jobs:
                    _run(self._jobs.popleft())
            finally:
                self._lock.release()


def _run(job: Callable[[], None]) -> None:
    # The thread that runs a job has nothing to do with it, so it must not get
    # the job's error: it is reported like that of any finalizer.
    try:
        job()
    except Exception as error:
        sys.unraisablehook(
            SimpleNamespace(
                exc_type=type(error),
                exc_value=error,
                exc_traceback=error.__traceback__,
                err_msg="Error while device memory was given back",
                object=job,
            )
        )
