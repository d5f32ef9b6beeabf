"""Queues over connections that carry descriptors.

They are the standard library's queues but for two things. Their pipes are ours, so what
was put survives the process that put it (clause LIFE-5). And `Queue.put` pickles in the
caller, where the standard library leaves that to a thread: when `put` returns, the
tensors are shared (clause CHAN-7), and a refusal is raised there (clause GRAD-5).
"""

import errno
import queue
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable
from multiprocessing import queues, synchronize, util
from typing import Any, ClassVar

from ..steps import Message, steps
from .connection import Connection, Pipe


class SimpleQueue(queues.SimpleQueue[Any]):
    """A locked pipe; it uses no thread."""

    def __init__(self, *, ctx: Any):
        self._reader, self._writer = Pipe(duplex=False)
        self._rlock = ctx.Lock()
        self._wlock = ctx.Lock()
        self._poll = self._reader.poll

    def put(self, obj: Any) -> None:
        """Send an object; blocks while the pipe is full.

        Clauses CHAN-7, GRAD-5, LIFE-5.
        """
        message = steps.pack_message(obj)
        with self._wlock:
            steps.write_message(message, self._writer)

    def get(self) -> Any:
        """Receive an object. Clause CHAN-4."""
        with self._rlock:
            received = self._reader.receive()
        return steps.unpack_message(*received)


class Queue(queues.Queue):  # type: ignore[type-arg]  # Python 3.11 has no Queue[Any]
    """A queue whose `put` returns at once: a thread writes what the caller packed."""

    # Its base's inner parts that are used here; the type stubs leave them out.
    _buffer: deque[Any]
    _closed: bool
    _finalize_close: ClassVar[Callable[..., None]]
    _finalize_join: ClassVar[Callable[..., None]]
    _ignore_epipe: bool
    _joincancelled: bool
    _notempty: threading.Condition
    _poll: Callable[..., bool]
    _reader: Connection
    _reset: Callable[[], None]
    _rlock: synchronize.Lock
    _sem: synchronize.Semaphore
    _thread: threading.Thread | None
    _wlock: synchronize.Lock
    _writer: Connection

    def __init__(self, maxsize: int = 0, *, ctx: Any):
        super().__init__(maxsize, ctx=ctx)
        self._reader.close()
        self._writer.close()
        self._reader, self._writer = Pipe(duplex=False)
        self._reset()

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        """Send an object. Clauses CHAN-7, GRAD-5, GRAD-6, LIFE-5.

        Raises what packing raises, or `queue.Full`; then the queue is as it was before.
        """
        self._check_open()
        message = steps.put_message(obj)
        if not self._sem.acquire(block, timeout):
            _withdraw(message)
            raise queue.Full
        try:
            self._append(message)
        except OSError:
            self._sem.release()
            _withdraw(message)
            raise

    def _append(self, message: Message) -> None:
        with self._notempty:
            # An earlier message stays in the buffer until it is written.
            if not self._buffer and self._written_at_once(message):
                return
            if self._thread is None:
                self._start_thread()
            self._buffer.append(message)
            self._notempty.notify()

    def _written_at_once(self, message: Message) -> bool:
        if not self._wlock.acquire(False):
            return False
        try:
            return steps.write_at_once(message, self._writer)
        finally:
            self._wlock.release()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Receive an object. Raises `queue.Empty`. Clause CHAN-4."""
        self._check_open()
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._rlock.acquire(block, timeout):
            raise queue.Empty
        try:
            if not self._arrives(block, deadline):
                raise queue.Empty
            received = self._reader.receive()
            self._sem.release()
        finally:
            self._rlock.release()
        return steps.unpack_message(*received)

    def _arrives(self, block: bool, deadline: float | None) -> bool:
        """Whether a message can be read, or is to be waited for without end."""
        if not block:
            return self._poll()
        if deadline is None:
            return True
        return self._poll(max(deadline - time.monotonic(), 0))

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"Queue {self!r} is closed")

    def _start_thread(self) -> None:
        # The thread must not refer to the queue, whose end is the thread's end.
        self._buffer.clear()
        arguments = (self._buffer, self._notempty, self._reader, self._writer)
        settings = (self._wlock, self._sem, self._ignore_epipe)
        self._thread = threading.Thread(
            target=_feed,
            args=arguments + settings,
            name="QueueFeederThread",
            daemon=True,
        )
        self._thread.start()
        if not self._joincancelled:
            self._jointhread = util.Finalize(
                self._thread,
                Queue._finalize_join,
                [weakref.ref(self._thread)],
                exitpriority=-5,
            )
        self._close = util.Finalize(
            self,
            Queue._finalize_close,
            [self._buffer, self._notempty],
            exitpriority=10,
        )


class JoinableQueue(Queue, queues.JoinableQueue):  # type: ignore[type-arg]
    """A queue that knows how many of its objects have not been dealt with."""

    _cond: synchronize.Condition
    _unfinished_tasks: synchronize.Semaphore

    def _append(self, message: Message) -> None:
        with self._cond:
            super()._append(message)
            self._unfinished_tasks.release()


def _feed(
    buffer: deque[Any],
    notempty: threading.Condition,
    reader: Connection,
    writer: Connection,
    lock: synchronize.Lock,
    slots: synchronize.Semaphore,
    ignore_broken_pipe: bool,
) -> None:
    """Write messages until the queue is closed; a failure costs one message alone."""
    while True:
        with notempty:
            while not buffer:
                notempty.wait()
            message = buffer[0]
        if message is queues._sentinel:  # type: ignore[attr-defined]
            reader.close()
            writer.close()
            return
        try:
            with lock:
                steps.write_message(message, writer)
        except Exception as error:
            broken = getattr(error, "errno", 0) == errno.EPIPE
            if util.is_exiting() or (broken and ignore_broken_pipe):
                return
            slots.release()
            traceback.print_exc()
        with notempty:
            buffer.popleft()
        del message


def _withdraw(message: Message) -> None:
    message.outbox.withdraw()
