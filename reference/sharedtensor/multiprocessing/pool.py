"""The pool of the standard library over our queues, which need no lock.

A worker of the standard library's pool that is killed while it waits for a task has the
lock that all other workers need. Here there is no such lock, so the pool goes on.

Nor does it end with a message that is lost. The standard library's pool takes each
`OSError` for the end of the pipe, and any other exception ends the thread or the worker
that receives. Here the task of that message fails with the exception, by the number at
its beginning, and the next message is received.
"""

import pickletools
import threading
from contextlib import suppress
from multiprocessing import pool
from typing import Any, ClassVar, NoReturn

from .. import protocol
from .packets import BEGINNING, payload_of
from .queues import SimpleQueue

INTEGERS = frozenset({"BININT", "BININT1", "BININT2", "LONG1"})
"""The operations of a pickle for the integers that number tasks."""


class _Numbered(SimpleQueue):
    """A queue of tuples that begin with the number of a job and an index in it."""

    def get(self) -> Any:
        """Receive a tuple, or one that fails in place of a lost one.

        Raises `EOFError` or `OSError` at the end of the pipe alone. Clauses FAIL-2,
        FAIL-7, FAULT-2, LIFE-16, LIFE-19.
        """
        while True:
            taken: list[Any] = []
            try:
                received = self._reader.receive(True, taken)
                return protocol.unpack_message(*received)
            except Exception as error:
                message = payload_of(taken)
                if message is None:
                    raise
                numbers = numbers_of(message)
                if numbers:
                    return self._failed(*numbers, error)

    def _failed(self, job: int, index: int, error: Exception) -> tuple[Any, ...]:
        """Return what is received in place of the lost tuple with these numbers."""
        raise NotImplementedError


class Tasks(_Numbered):
    """What the workers of a pool have to do."""

    def _failed(self, job: int, index: int, error: Exception) -> tuple[Any, ...]:
        return job, index, _raise, (error,), {}


class Results(_Numbered):
    """What came of the tasks of a pool. It survives its worker: clause LIFE-27."""

    def _failed(self, job: int, index: int, error: Exception) -> tuple[Any, ...]:
        return job, index, (False, error)


def _raise(error: Exception) -> NoReturn:
    raise error


def numbers_of(message: memoryview) -> tuple[int, int] | None:
    """Return the first two integers of a pickle, None if it does not begin with them.

    A pickle has the parts of a tuple in their order.
    """
    found: list[int] = []
    with suppress(ValueError):  # it is cut off
        for operation, argument, _ in pickletools.genops(bytes(message[:BEGINNING])):
            if operation.name in INTEGERS:
                assert isinstance(argument, int), "these operations have an integer"
                found.append(argument)
            if len(found) == 2:
                return found[0], found[1]
    return None


class Pool(pool.Pool):
    """A pool of worker processes: two queues. Clauses CHAN-1, CHAN-2, LIFE-16."""

    default_context: ClassVar[Any]  # that of the module, which sets it
    _ctx: Any  # an inner part of its base that the type stubs leave out

    def __init__(
        self,
        processes: int | None = None,
        initializer: Any = None,
        initargs: Any = (),
        maxtasksperchild: int | None = None,
        context: Any = None,
    ):
        context = (context or self.default_context).get_context()
        super().__init__(processes, initializer, initargs, maxtasksperchild, context)

    def _setup_queues(self) -> None:
        """Make the queues. A lost message does not end who receives: clause FAIL-2."""
        self._inqueue = Tasks(ctx=self._ctx)
        self._outqueue = Results(ctx=self._ctx)
        self._quick_put = self._inqueue._writer.send
        self._quick_get = self._outqueue.get

    @staticmethod
    def _help_stuff_finish(
        inqueue: SimpleQueue, task_handler: threading.Thread, size: int
    ) -> None:
        """Empty the queue of tasks, so that the thread that fills it can end.

        What cannot be received is taken from it all the same. The base class locks the
        workers out, since it waits for a message that one of them might take.
        """
        while task_handler.is_alive():
            taken: list[Any] = []
            try:
                _, descriptors = inqueue._reader.receive(False, taken)
            except Exception:  # whatever it is, what was taken is gone with it
                if payload_of(taken) is None:
                    return  # it is empty, or at its end
                continue
            descriptors.close()
