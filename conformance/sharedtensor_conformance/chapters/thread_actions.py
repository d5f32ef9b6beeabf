"""Threads of a process that share, send and receive, or only wait."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from sharedtensor_conformance.adapter import Layout
from sharedtensor_conformance.chapters.message_actions import bytes_of_size
from sharedtensor_conformance.harness.remote.actor import Actor
from sharedtensor_conformance.harness.remote.threads import (
    SWITCH_INTERVAL,
    THREAD_TIMEOUT,
    run_in_parallel,
)

_idle_threads: list[tuple[threading.Thread, threading.Event]] = []

_thread_starts = 0

MAX_IN_FLIGHT = 16
"""More messages than an `Exchange` can have in flight: one for each process there."""

USES_AFTER_THE_MOVE = 3
"""How often a tensor is read once it has moved; a queue may move it a little later."""

LONG_MESSAGE_BYTES = 100_000
"""The size of long messages in bytes, more than what is sent in one piece."""


def start_idle_thread(actor: Actor) -> None:
    """Start a thread that waits until `stop_idle_threads` is called."""
    until = threading.Event()
    thread = threading.Thread(target=until.wait, daemon=True)
    thread.start()
    _idle_threads.append((thread, until))


def stop_idle_threads(actor: Actor) -> None:
    """End the threads that `start_idle_thread` started in this process."""
    while _idle_threads:
        thread, until = _idle_threads.pop()
        until.set()
        thread.join(THREAD_TIMEOUT)


def count_thread_starts(actor: Actor) -> None:
    """Count the threads of Python that start in this process from now on.

    A hook in each new thread counts it, since no audit event tells of their starts. A
    thread of C that starts and ends is not seen.
    """
    global _thread_starts
    _thread_starts = 0

    def count(*event: object) -> None:
        global _thread_starts
        sys.setprofile(None)  # of the new thread
        _thread_starts += 1

    threading.setprofile(count)


def counted_thread_starts(actor: Actor) -> int:
    """Return the number of threads that have started since they are counted."""
    return _thread_starts


def share_and_put_in_parallel(
    actor: Actor, tensor: Any, routes: list[list[str]]
) -> list[Any]:
    """Share a tensor in two threads, read it in one, and put it in one for each route.

    Returns:
        The addresses of the tensor after each of the two calls that share it and at the
        end; the values that were read; and whether the tensor was shared after each of
        the two calls.
    """

    def put(route: list[str]) -> bool:
        to, channel = route
        actor.put(to, channel, tensor)
        return True

    def share() -> list[Any]:
        actor.call("share", tensor)
        return [actor.call("is_shared", tensor), actor.call("address", tensor)]

    (first, one), (second, other), values, *_ = run_in_parallel(
        *(share, share, partial(actor.call, "values", tensor)),
        *(partial(put, route) for route in routes),
    )
    last = actor.call("address", tensor)
    return [[one, other, last], values, [first, second]]


def make_ones(actor: Actor, length: int) -> Any:
    """Return a new tensor of `length` elements of value 1, made without a list."""
    one = actor.call("make", [1], (1,), "float32")
    window = Layout("everywhere", 0, (length,), (0,))
    return actor.call("clone", actor.call("view", one, window))


def use_while_it_moves(
    actor: Actor, tensor: Any, length: int, reading: str, route: list[str]
) -> list[Any]:
    """Read and write a tensor of ones in a thread while another one shares or sends it.

    The thread writes to the last element, and reads all of them by an operation that
    makes a copy of the tensor or a list. The other one writes 2 to the first element,
    and puts the tensor on a route; without a route it shares it.

    Returns:
        Values that were read where nobody wrote them, with their places, and the last
        value that was written.
    """
    moved = threading.Event()
    last, wrong = length - 1, []

    def read_all() -> dict[int, float]:
        read = actor.call(reading, tensor)
        places = (0, length // 2, last)
        if reading == "values":
            return {place: read[place] for place in places}
        return {place: actor.call("read", read, (place,)) for place in places}

    def use() -> int:
        written, rounds_left = 1, USES_AFTER_THE_MOVE
        while rounds_left:
            rounds_left -= moved.is_set()
            written += 1
            actor.call("write", tensor, (last,), written)
            first, middle, end = (read := read_all()).values()
            if first not in (1, 2) or middle != 1 or end not in range(1, written + 1):
                wrong.append(read)
        return written

    def move() -> None:
        actor.call("write", tensor, (0,), 2)
        try:
            if route:
                actor.put(route[0], route[1], tensor)
            else:
                actor.call("share", tensor)
        finally:
            moved.set()

    written, _ = run_in_parallel(use, move)
    return [wrong, written]


def put_from_threads(
    actor: Actor, channel: Any, threads: int, per_thread: int
) -> list[Any]:
    """Put `per_thread` messages from each of `threads` threads.

    Returns:
        For each thread the tensors that it put.
    """
    return run_in_parallel(*_put_actions(actor, channel, threads, per_thread))


def get_in_threads(
    actor: Actor, channel: Any, threads: int, per_thread: int
) -> list[list[list[Any]]]:
    """Get `per_thread` messages in each of `threads` threads.

    Returns:
        For each thread and message: the thread that put it, its number in that thread,
        and whether its content is right.
    """
    return run_in_parallel(*_get_actions(actor, channel, threads, per_thread))


def put_and_get_in_threads(
    actor: Actor, channel: Any, threads: int, per_thread: int
) -> list[list[list[Any]]]:
    """Put and get messages at the same time, from `threads` threads for each.

    Returns:
        The results of `put_from_threads`, followed by those of `get_in_threads`.
    """
    putting = _put_actions(actor, channel, threads, per_thread)
    getting = _get_actions(actor, channel, threads, per_thread)
    return run_in_parallel(*putting, *getting)


def _put_actions(
    actor: Actor, channel: Any, threads: int, per_thread: int
) -> list[Callable[[], list[Any]]]:
    def put_all(thread: int) -> list[Any]:
        sent = []
        for number in range(per_thread):
            tensor = actor.call("make", _values(thread, number), (2,), "float32")
            message = [thread, number, tensor, bytes_of_size(_size(thread, number))]
            actor.put_on(channel, message)
            sent.append(tensor)  # so that no tensor is dropped while in flight
        return sent

    return [partial(put_all, thread) for thread in range(threads)]


def _get_actions(
    actor: Actor, channel: Any, threads: int, per_thread: int
) -> list[Callable[[], list[list[Any]]]]:
    def get_all() -> list[list[Any]]:
        return [
            _check_message(actor, actor.get_from(channel)) for _ in range(per_thread)
        ]

    return [get_all] * threads


def _check_message(actor: Actor, message: list[Any]) -> list[Any]:
    thread, number, tensor, text = message
    is_whole = text == bytes_of_size(_size(thread, number))
    has_values = actor.call("values", tensor) == _values(thread, number)
    return [thread, number, is_whole and has_values]


def _values(thread: int, number: int) -> list[int]:
    return [1000 * thread + number, -number]


def _size(thread: int, number: int) -> int:
    """Return the size of a message in bytes; one of ten is `LONG_MESSAGE_BYTES`."""
    return LONG_MESSAGE_BYTES if (thread + number) % 10 == 0 else thread + number


class Exchange:
    """A thread that puts a new tensor on a queue and gets one, over and over.

    The tensors have the values 0 and the number of the round. Others may use the queue
    at the same time. Each of them, like this thread, puts a message before it gets one.
    So nobody waits for ever, and nothing is left in the end.

    The thread makes the first tensor of its process, unless a test has made one: a fork
    may then copy a lock that the implementation takes at its first use. What the suite
    and the standard library import late is imported by a message without a tensor.
    """

    def __init__(self, actor: Actor, channel: Any) -> None:
        self._actor = actor
        self._channel = channel
        self._stop = threading.Event()
        self._failed: list[BaseException] = []
        self._sent: deque[Any] = deque(maxlen=MAX_IN_FLIGHT)
        self._received: list[list[Any]] = []
        self._rounds = 0
        actor.put_on(channel, None)
        actor.get_from(channel)
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._put_and_get()
        except BaseException as error:
            self._failed.append(error)

    def _put_and_get(self) -> None:
        tensor = self._actor.call("make", [0, self._rounds], (2,), "float32")
        self._sent.append(tensor)  # so that no tensor is dropped while in flight
        self._actor.put_on(self._channel, tensor)
        self._rounds += 1
        arrived = self._actor.get_from(self._channel)
        self._received.append(self._actor.call("values", arrived))

    def stop(self) -> tuple[int, list[list[Any]]]:
        """Stop the thread; return its number of rounds, and the values it received.

        Raises:
            BaseException: the exception that ended the thread.
        """
        self._stop.set()
        self._thread.join()
        sys.setswitchinterval(self._interval)
        if self._failed:
            raise self._failed[0]
        return self._rounds, self._received


def start_exchange(actor: Actor, channel: Any) -> Any:
    """Start a thread that puts on a queue and gets there: see `Exchange`."""
    return Exchange(actor, channel)


def stop_exchange(actor: Actor, exchange: Any) -> tuple[int, list[list[Any]]]:
    """Stop such a thread; see `Exchange.stop`."""
    stopped: tuple[int, list[list[Any]]] = exchange.stop()
    return stopped
