"""Queues over connections that carry descriptors.

They are the standard library's queues but for three things. Their pipes are ours, so
what was put survives the process that put it (clause LIFE-5). They need no lock, since
a message is one packet: a consumer that is killed while it waits takes no lock along
that the others would need. And `Queue.put` pickles in the caller, where the standard
library leaves that to a thread: when `put` returns, the tensors are shared (clause
CHAN-7), and a refusal is raised there (clause GRAD-5).
"""

import queue
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable
from multiprocessing import queues, synchronize, util
from typing import Any, ClassVar

from .. import atomic, protocol
from ..errors import ThreadError, pass_on
from ..transport import Outbox
from .connection import Connection, Pipe

ROOM = 20 << 10
"""The size of a queue's pipe in bytes, which the system doubles.

It takes some thirty small messages. What waits behind them has no descriptor in flight.
"""

_queues: "weakref.WeakSet[Queue]" = weakref.WeakSet()
"""The queues that this process could receive from until its end. Clause LOAD-7."""


class _ThreadCondition(threading.Condition):
    """One that no exception of a signal handler leaves locked. Clause FAULT-2."""

    __enter__ = atomic.part_of("_lock.__enter__")
    __exit__ = atomic.part_of("_lock.__exit__")

    def notify(self, n: int = 1) -> None:
        """Wake all who wait: an interrupted call may have left one who does not."""
        super().notify(max(n, len(self._waiters)))  # type: ignore[attr-defined]


class _ProcessCondition(synchronize.Condition):
    """One that no exception of a signal handler leaves locked. Clause FAULT-2."""

    __enter__ = atomic.part_of("_lock._semlock.__enter__")
    __exit__ = atomic.part_of("_lock._semlock.__exit__")


class SimpleQueue(queues.SimpleQueue[Any]):
    """A pipe with any number of readers and writers; it uses no thread.

    Clause THREAD-4.
    """

    def __init__(self, *, ctx: Any):
        self._reader, self._writer = Pipe(duplex=False)
        self._rlock = ctx.Lock()
        self._wlock = ctx.Lock()
        self._poll = self._reader.poll

    def put(self, obj: Any) -> None:
        """Send an object, without a lock; blocks while the pipe is full.

        Clauses CHAN-7, GRAD-5, LIFE-5, LOAD-1, LOAD-4.
        """
        protocol.write_message(protocol.pack_message(obj), self._writer)

    def get(self) -> Any:
        """Receive an object, without a lock. Clauses CHAN-4, LIFE-15, LIFE-16."""
        return protocol.unpack_message(*self._reader.receive())


class Queue(queues.Queue):  # type: ignore[type-arg]  # Python 3.11 has no Queue[Any]
    """A queue whose `put` returns at once: a thread writes what the caller packed."""

    # Its base's inner parts that are used here; the type stubs leave them out.
    _after_fork: ClassVar[Callable[..., None]]
    _buffer: deque[Any]
    _closed: bool
    _ignore_epipe: bool
    _close: util.Finalize | None
    _joincancelled: bool
    _jointhread: util.Finalize | None
    _notempty: threading.Condition
    _poll: Callable[..., bool]
    _reader: Connection
    _sem: synchronize.Semaphore
    _thread: threading.Thread | None
    _writer: Connection

    def __init__(self, maxsize: int = 0, *, ctx: Any):
        super().__init__(maxsize, ctx=ctx)
        self._reader.close()
        self._writer.close()
        self._reader, self._writer = Pipe(duplex=False, room=ROOM)
        self._reset()

    def __setstate__(self, state: Any) -> None:
        """Become the queue that was received, which begins anew in forks as well.

        The base registers that only where a queue is made. Clauses LIFE-5, LIFE-7.
        """
        super().__setstate__(state)
        util.register_after_fork(self, Queue._after_fork)

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        """Send an object. Clauses CHAN-7, CHAN-13, GRAD-5, GRAD-6, LIFE-5.

        While there is no room, what was packed is this call's alone, and goes with its
        process: clause LOAD-1.

        Raises what packing raises, or `queue.Full`; then the queue is as it was before:
        clauses FAIL-1, LIFE-18.
        """
        self._check_open()
        message = protocol.pack_message(obj)
        place: list[bool] = []
        try:
            atomic.append(place, self._sem.acquire, block, timeout)
            if not place[0]:
                raise queue.Full
            self._append(message)
        except BaseException:
            # What has been accepted keeps its place: its receiver gives that back.
            if place and place[0] and not message.accepted:
                self._sem.release()
            raise

    def _append(self, message: Outbox) -> None:
        atomic.under(self._notempty, self._write_or_keep, message)

    def _write_or_keep(self, message: Outbox) -> None:
        # An earlier message stays in the buffer until it is written.
        if not self._buffer and protocol.write_at_once(message, self._writer):
            self._has_written = True
            return
        protocol.make_ready(message, self._writer)
        if self._thread is None:
            self._start_thread()
        # The thread goes on once this one leaves the lock.
        self._notempty.notify()
        atomic.append(message.accepted, self._buffer.append, message)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Receive an object, without a lock. Raises `queue.Empty`.

        Clauses CHAN-4, CHAN-12, LIFE-15, LIFE-16, LOAD-3.
        """
        self._check_open()
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._arrives(block, deadline):
            wait = block and deadline is None
            taken: list[Any] = []
            try:
                received = self._reader.receive(wait, taken)
            except BlockingIOError as error:
                pass_on(error)
                continue  # another consumer was faster
            finally:
                # It has left the queue, received or lost. No signal handler runs
                # before the call. Clauses FAIL-2, FAIL-7, FAULT-2.
                if taken and taken[0][0]:
                    self._sem.release()
            return protocol.unpack_message(*received)
        raise queue.Empty

    def close(self) -> None:
        """Refuse further messages, as the standard library documents it.

        The end to receive from is closed at once, for a closed queue is not received
        from. The other one stays with a thread until its last message is written. A
        queue that this process has not put on stays as it is. Clause LIFE-13.
        """
        super().close()
        if self._thread is not None:
            self._reader.close()
        elif self._has_written:
            self._reader.close()
            self._writer.close()

    def _reset(self, after_fork: bool = False) -> None:
        """Begin anew, in a forked child without what waits: that is its parent's.

        The parent's thread does not run in the child, and what it refers to stays
        there for ever. Clause LIFE-7.
        """
        if after_fork:
            _withdraw(self._buffer)
        super()._reset(after_fork)  # type: ignore[misc]  # the stubs leave it out
        if not after_fork:
            self._notempty = _ThreadCondition(threading.Lock())
        _queues.add(self)
        self._has_written = False  # by this process, without a thread
        self._given_up: threading.Thread | None = None

    @staticmethod
    def _finalize_close(buffer: deque[Any], notempty: threading.Condition) -> None:
        """Have the thread end once it has written what waits. Clause THREAD-6."""
        atomic.under(notempty, _end_feeding, buffer, notempty)

    @staticmethod
    def _finalize_join(thread: weakref.ref[threading.Thread]) -> None:
        """Wait for the thread; this process receives no more then if it ends.

        Otherwise the thread could wait for ever for room that only this process would
        make, or another one that waits for this one in the same way. Clause LOAD-7.
        """
        if util.is_exiting():
            for each in list(_queues):
                each._reader.close()
        queues.Queue._finalize_join(thread)  # type: ignore[attr-defined]

    def _arrives(self, block: bool, deadline: float | None) -> bool:
        """Return whether a message can be read, or is to be waited for without end.

        Clause CHAN-12.
        """
        if not block:
            return self._poll()
        if deadline is None:
            return True
        return self._poll(max(deadline - time.monotonic(), 0))

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"Queue {self!r} is closed")

    def _start_thread(self) -> None:
        """Start the thread that writes; the process waits for it at its end.

        Unless the program has said otherwise: clause LOAD-2. Where the thread cannot be
        started, or this is interrupted, there is none, and the next call starts one:
        what that accepts arrives. Clauses FAIL-1, LIFE-5, THREAD-6.
        """
        # The thread must not refer to the queue, whose end is the thread's end. Nor to
        # its reader: with the last reader everywhere goes what waits. Clause LIFE-13.
        wanted = [True]
        arguments = (wanted, self._buffer, self._notempty, self._writer)
        settings = (self._sem, self._ignore_epipe)
        thread = threading.Thread(
            target=_feed,
            args=arguments + settings,
            name="QueueFeederThread",
            daemon=True,
        )
        try:
            if not self._joincancelled:
                self._jointhread = util.Finalize(
                    thread,
                    Queue._finalize_join,
                    [weakref.ref(thread)],
                    exitpriority=-5,
                )
            self._close = util.Finalize(
                self,
                Queue._finalize_close,
                [self._buffer, self._notempty],
                exitpriority=10,
            )
            _start(thread)
            self._thread = thread
        except BaseException:
            # It may run, or be about to. It waits for the lock, which is held here. A
            # `Finalize` whose making was interrupted fails when its object goes.
            self._given_up = thread
            wanted.clear()
            self._notempty.notify()
            for made in (self._jointhread, self._close):
                if made is not None:
                    made.cancel()
            self._jointhread = self._close = self._thread = None
            raise


def _start(thread: threading.Thread) -> None:
    """Start the thread of a queue, or raise `ThreadError`. Clause FAIL-12."""
    try:
        thread.start()
    except RuntimeError as error:
        if "new thread" not in str(error):  # it is that of a signal handler
            raise
        raise ThreadError(
            f"The thread that writes to a queue cannot be started: {error}. Raise the "
            "limit of processes (ulimit -u, or pids.max of the control group), or use "
            "a SimpleQueue, which needs no thread."
        ) from error


class JoinableQueue(Queue, queues.JoinableQueue):  # type: ignore[type-arg]
    """A queue that counts the objects that have not been dealt with. Clause CHAN-8."""

    _cond: synchronize.Condition
    _unfinished_tasks: synchronize.Semaphore

    def __init__(self, maxsize: int = 0, *, ctx: Any):
        super().__init__(maxsize, ctx=ctx)
        self._cond = _ProcessCondition(ctx=ctx)

    def _append(self, message: Outbox) -> None:
        atomic.under(self._cond, self._append_and_count, message)

    def _append_and_count(self, message: Outbox) -> None:
        try:
            super()._append(message)
        finally:
            # No call is in this line, so no signal handler runs before `release`.
            if message.accepted:
                self._unfinished_tasks.release()

    def task_done(self) -> None:
        """Note that an object has been dealt with. Clauses CHAN-8, THREAD-6."""
        atomic.under(self._cond, self._count_as_done)

    def _count_as_done(self) -> None:
        if not self._unfinished_tasks.acquire(False):
            raise ValueError("task_done() called too many times")
        if self._all_are_done():
            self._cond.notify_all()

    def join(self) -> None:
        """Wait until all objects have been dealt with. Clauses CHAN-8, THREAD-6."""
        atomic.under(self._cond, self._wait_until_done)

    def _wait_until_done(self) -> None:
        if not self._all_are_done():
            self._cond.wait()

    def _all_are_done(self) -> bool:
        return bool(self._unfinished_tasks._semlock._is_zero())  # type: ignore[attr-defined]


def _end_feeding(buffer: deque[Any], notempty: threading.Condition) -> None:
    buffer.append(queues._sentinel)  # type: ignore[attr-defined]
    notempty.notify()


def _withdraw(buffer: deque[Any]) -> None:
    """Release what messages hold that this process will not write."""
    for message in buffer:
        if isinstance(message, Outbox):
            message.clear()
    buffer.clear()


def _feed(
    wanted: list[bool],
    buffer: deque[Any],
    notempty: threading.Condition,
    writer: Connection,
    slots: synchronize.Semaphore,
    ignore_broken_pipe: bool,
) -> None:
    """Write messages until the queue is closed; a failure costs one message alone.

    Do nothing where the call that began it has raised: then nothing is `wanted`. Once
    the queue is closed or dropped, what no process can receive is dropped silently:
    clause LIFE-13.
    """
    last = queues._sentinel  # type: ignore[attr-defined]
    while True:
        with notempty:
            while wanted and not buffer:
                notempty.wait()
            if not wanted:
                return
            message = buffer[0]
        if message is last:
            writer.close()
            return
        try:
            protocol.write_message(message, writer)
        except Exception as error:
            is_unreadable = isinstance(error, (BrokenPipeError, ConnectionResetError))
            if util.is_exiting() or (is_unreadable and ignore_broken_pipe):
                return
            slots.release()
            if not (is_unreadable and buffer[-1] is last):
                traceback.print_exc()
        with notempty:
            buffer.popleft()
        del message
