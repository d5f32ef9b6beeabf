"""A lock for state that finalizers change as well.

Python runs finalizers wherever the garbage collector strikes: in any thread, between
any two operations, also in a thread that holds the very lock that the finalizer needs.
A finalizer that waits for a lock can therefore wait for itself.

Here it queues a job instead, which is an atomic operation. If nobody holds the lock the
job runs at once, and else when the holder releases it: the holder looks at the queue
once more after that. Either it sees the new job, or the job came later, and then the
lock was free for whoever queued it. No job is stranded and no finalizer waits.

An exception of a signal handler, such as that of Ctrl-C, can arise after any call. One
that arises between taking a lock and the block that releases it leaves the lock taken
for ever. Only a `with` whose two methods are functions of C has no such place, so `run`
and `hold` take the lock by nothing else (clause FAULT-2). Each has that `with` in its
own frame: around it there would be such a place again.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar, cast

from .errors import pass_on

P = ParamSpec("P")
Result = TypeVar("Result")
Job = Callable[[], object]
Queued = tuple[Hashable, Job]


class Postponed(Exception):
    """Raised by a job that cannot be done now: it stays the first of its order."""


class Busy(Exception):
    """The lock could not be had in time."""


class FinalizerLock:
    """A lock with a queue of jobs that need it. It is not reentrant.

    Queued jobs run one after the other: before what `run` is given, and after it. Those
    of one order keep it where one is postponed, and the others go on. An error
    of a job does not reach the thread that happens to run it; it is reported like that
    of any finalizer, by `sys.unraisablehook`.

    Attributes:
        jobs: what is queued, the next one first, each with its order. A job leaves it
            when it is done or postponed.
        postponed: what was postponed, and what comes after it, by its order.
    """

    def __init__(self) -> None:
        self.jobs: deque[Queued] = deque()
        self.postponed: dict[Hashable, deque[Queued]] = {}
        self._make()

    def _make(self) -> None:
        self._lock = threading.RLock()  # it knows its owner
        self._if_free = self._block(blocking=False)
        self._in_time: dict[float, AbstractContextManager[bool]] = {}

    def _block(
        self, blocking: bool = True, timeout: float = -1
    ) -> AbstractContextManager[bool]:
        """Return what a `with` enters and leaves by functions of C, and by no others.

        It gives whether the lock was had. If not, leaving it raises `RuntimeError`. It
        gives nothing where a signal handler raises in the wait for the lock.
        """
        take = functools.partial(self._lock.acquire, blocking, timeout)
        give = self._lock.__exit__
        methods = {"__enter__": staticmethod(take), "__exit__": staticmethod(give)}
        made: Any = type("Block", (), methods)()
        return cast("AbstractContextManager[bool]", made)

    def is_owned(self) -> bool:
        """Return whether this thread holds the lock."""
        return self._lock._is_owned()  # type: ignore[attr-defined,no-any-return]

    def run(
        self,
        timeout: float,
        work: Callable[P, Result],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> Result:
        """Return what a function returns that is called under the lock.

        Args:
            timeout: the seconds to wait for the lock.
            work: the function.
            arguments: what it is given.
            options: what it is given by name.

        Raises:
            Busy: the lock could not be had in time, or this thread holds it.
        """
        if self.is_owned():
            raise Busy
        taken = None
        try:
            with self._within(timeout) as taken:
                if taken:
                    if self.jobs or self.postponed:
                        self.run_queued()
                    return work(*arguments, **options)
        except RuntimeError:
            if taken is not False:
                raise
        finally:
            if self.jobs:
                self._run_if_free()
        raise Busy

    def hold(self, timeout: float) -> Iterator[bool]:
        """Hold the lock from the first step of a generator until it is closed.

        For what begins in one function and ends in another. It yields whether the lock
        was had in time.
        """
        taken = None
        try:
            with self._within(timeout) as taken:
                yield taken
        except RuntimeError:
            if taken is not False:
                raise
        finally:
            if self.jobs:
                self._run_if_free()

    def run_soon(self, job: Job, order: Hashable = None) -> None:
        """Run a job under the lock, now or when it is next released; never wait.

        For finalizers, and for what a thread that holds the lock wants done after.
        It comes after the other jobs of its order.
        """
        self.jobs.append((order, job))
        self._run_if_free()

    def run_queued(self) -> None:
        """Run the queued jobs, but for those that are postponed or come after these.

        Called by the holder of the lock.
        """
        for order in tuple(self.postponed):
            queue = self.postponed[order]
            while queue and self._is_done(queue[0][1]):
                queue.popleft()
            if not queue:
                del self.postponed[order]
        while self.jobs:
            order, job = self.jobs[0]
            if order not in self.postponed and self._is_done(job):
                self.jobs.popleft()
            else:  # by one call of C: it is never in both queues, nor in none
                queue = self.postponed.setdefault(order, deque())
                queue.extend(itertools.starmap(self.jobs.popleft, ((),)))

    def _is_done(self, job: Job) -> bool:
        """Run a job; return False if it is postponed."""
        try:
            job()
        except Postponed:
            return False
        except Exception as error:
            pass_on(error)
            _Failed(error)
        return True

    def reset(self, keep: Callable[[Job], bool]) -> None:
        """Be a new lock that nobody holds, in a forked child. Clause THREAD-3.

        Args:
            keep: which of the parent's jobs the child has to do as well.
        """
        queued = itertools.chain(*self.postponed.values(), self.jobs)
        self.jobs = deque((order, job) for order, job in queued if keep(job))
        self.postponed = {}
        self._make()

    def _within(self, timeout: float) -> AbstractContextManager[bool]:
        """Return the block that waits so long."""
        found = self._in_time.get(timeout)
        if found is None:
            found = self._in_time[timeout] = self._block(timeout=timeout)
        return found

    def _run_if_free(self) -> None:
        while self.jobs and not self.is_owned():
            taken = None
            try:
                with self._if_free as taken:
                    if taken:
                        self.run_queued()
            except RuntimeError:
                if taken is not False:
                    raise
                return  # its holder looks at the queue


class _Failed:
    """Raises an error in its own finalizer, where the interpreter reports it."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __del__(self) -> None:
        raise self._error
