"""Fix: a queue pickles in `put`, and is read without a lock."""

from __future__ import annotations

import errno
import queue
import socket
import time
from multiprocessing import queues
from multiprocessing.util import is_exiting
from typing import Any

from torch_patches.cargo import (
    Message,
    pack,
    unpack,
)
from torch_patches.messages import (
    MessageLostError,
    packet_of,
)
from torch_patches.replacing import wrap


def apply() -> None:
    """Restores GRAD-5, CHAN-7, FAIL-1, LIFE-6, LIFE-16, LOAD-4, MEM-1.

    Replaces `put`, `get` and the thread of the standard library's queues, which
    PyTorch hands out. `put` packs the message itself, so it raises what is refused, and
    the tensor is in shared memory when it returns; it sends the message where there is
    room. Only what finds no room is left to the thread, packed. Packets need no lock:
    readers and writers that are killed hold none.

    A reader that is killed between a message and its place in a bounded queue still
    takes the place with it. `put` takes as long as packing takes. An executor of
    `concurrent.futures`, which has a hook for what is refused, gets it there as before.
    """
    queues.Queue.put = put  # type: ignore[method-assign]
    queues.Queue.get = get  # type: ignore[method-assign]
    queues.Queue._feed = staticmethod(feed)  # type: ignore[attr-defined]
    wrap(queues.Queue, "_after_fork", _after_fork)
    queues.JoinableQueue.put = put_task  # type: ignore[method-assign]
    queues.SimpleQueue.put = put_simply  # type: ignore[method-assign]
    queues.SimpleQueue.get = get_simply  # type: ignore[method-assign]


def _after_fork(before: Any, self: Any) -> None:
    """Close what the messages have that wait: the parent sends them."""
    for message in self._buffer:
        if isinstance(message, Message):
            message.cargo.release()
    before(self)


def put(self: Any, obj: Any, block: bool = True, timeout: float | None = None) -> None:
    """Pack an object and send it, or leave it to the thread where there is no room."""
    message = _enter(self, obj, block, timeout)
    if message is not None:
        with self._notempty:
            _hand_over(self, message)


def put_task(
    self: Any, obj: Any, block: bool = True, timeout: float | None = None
) -> None:
    """Put an object that a call of `task_done` is to follow."""
    message = _enter(self, obj, block, timeout)
    if message is not None:
        with self._notempty, self._cond:
            self._unfinished_tasks.release()
            _hand_over(self, message)


def _enter(self: Any, obj: Any, block: bool, timeout: float | None) -> Message | None:
    """Pack the object, then take a place in the queue: a refusal takes none."""
    if self._closed:
        raise ValueError(f"{self!r} is closed")
    try:
        message = pack(obj)
    except Exception as error:
        hook = type(self)._on_queue_feeder_error
        if hook is queues.Queue._on_queue_feeder_error:  # type: ignore[attr-defined]
            raise
        self._on_queue_feeder_error(error, obj)
        return None
    if not self._sem.acquire(block, timeout):
        raise queue.Full
    return message


def _hand_over(self: Any, message: Message) -> None:
    """Send a message, unless others wait before it or there is no room."""
    try:
        if not self._buffer and _sent(self, message):
            return
        # What the thread is left with has all the descriptors that sending it takes.
        message.packet = message.packet or packet_of(message)
        if self._thread is None:
            self._start_thread()
    except BaseException:
        self._sem.release()
        raise
    self._buffer.append(message)
    self._notempty.notify()


def _sent(self: Any, message: Message) -> bool:
    try:
        self._writer.send_message(message, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    return True


def feed(
    buffer: Any,
    notempty: Any,
    send_bytes: Any,
    _writelock: Any,
    reader_close: Any,
    writer_close: Any,
    ignore_epipe: bool,
    onerror: Any,
    queue_sem: Any,
) -> None:
    """Send what waits. A message stays in the buffer until it has been sent."""
    while True:
        with notempty:
            while not buffer:
                notempty.wait()
            message = buffer[0]
        if not isinstance(message, Message):  # what says that the queue is closed
            reader_close()
            writer_close()
            return
        try:
            send_bytes(message)
        except Exception as error:
            if is_exiting() or (
                ignore_epipe and getattr(error, "errno", 0) == errno.EPIPE
            ):
                return
            queue_sem.release()
            onerror(error, message)
        with notempty:
            buffer.popleft()
        del message


def get(self: Any, block: bool = True, timeout: float | None = None) -> Any:
    """Receive a message; others may wait for one on the same queue."""
    if self._closed:
        raise ValueError(f"{self!r} is closed")
    end = None
    if timeout is not None or not block:
        end = time.monotonic() + ((timeout or 0) if block else 0)
    try:
        message = _receive_until(self, end)
    except MessageLostError:  # it has left its place
        self._sem.release()
        raise
    self._sem.release()
    return unpack(message)


def _receive_until(self: Any, end: float | None) -> Message:
    if end is None:
        awaited: Message = self._reader.receive()
        return awaited
    while self._poll(max(end - time.monotonic(), 0)):
        try:
            received: Message = self._reader.receive(socket.MSG_DONTWAIT)
        except BlockingIOError:  # another process was faster
            continue
        return received
    raise queue.Empty


def put_simply(self: Any, obj: Any) -> None:
    """Pack an object and send it."""
    self._writer.send(obj)


def get_simply(self: Any) -> Any:
    """Receive an object."""
    return self._reader.recv()
