"""Actions that several actors, or several threads of one actor, execute concurrently.

The controller makes one request to each actor, and the actors then run without it. So
there is no remote call between a write in one process and the read in another, and only
microseconds pass.

The first argument of each action is the actor.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol

from sharedtensor_conformance.harness import process_tree, tasks
from sharedtensor_conformance.harness.actions import (
    THREAD_TIMEOUT,
    bytes_of_size,
    end,
)

MAX_WRONG_READINGS = 5
"""The maximum number of wrong readings that an action returns. It does not stop at a
wrong reading, since other processes wait for it.
"""

READS_PER_CHECK = 50
"""The number of readings between two checks for the message that ends the reading."""

SWITCH_INTERVAL = 1e-6
"""Seconds after which the interpreter switches threads, so short that they race."""

MAX_IN_FLIGHT = 16
"""More messages than an `Exchange` can have in flight: one for each process there."""

SLOW_PICKLING = 0.5
"""Seconds for which a thread that pickles for another one is held up."""

LONG_MESSAGE_BYTES = 100_000
"""The size of long messages in bytes, more than what is sent in one piece."""


# Processes that write and read in turn


class Turns(Protocol):
    """How processes wait for their turn to write, and pass it on."""

    def take(self, place: int) -> None:
        """Wait until it is the turn of the process at `place`."""

    def give(self, place: int) -> None:
        """End the turn of the process at `place`."""


class MessageTurns:
    """Turns that are passed on by messages with no content."""

    def __init__(self, actor: Any, names: list[str], channel: str) -> None:
        self._actor = actor
        self._names = names
        self._channel = channel

    def take(self, place: int) -> None:
        """Get the message of the process before this one."""
        self._actor.do_get(self._names[place - 1], self._channel)

    def give(self, place: int) -> None:
        """Put a message for the process after this one."""
        following = self._names[(place + 1) % len(self._names)]
        self._actor.do_put(following, self._channel, None)


class PrimitiveTurns:
    """Turns of two processes, with one lock or semaphore for each.

    A process waits by acquiring its own primitive, and the other process releases it. A
    primitive that is made without `arguments` is free at first, so the initializer
    acquires it.
    """

    def __init__(self, context: Any, maker: str, *arguments: Any) -> None:
        self._own = [getattr(context, maker)(*arguments) for _ in range(2)]
        if not arguments:
            for lock in self._own:
                lock.acquire()

    def take(self, place: int) -> None:
        """Acquire the primitive of this process, which the other process releases."""
        self._own[place].acquire()

    def give(self, place: int) -> None:
        """Release the primitive of the other process."""
        self._own[1 - place].release()


class EventTurns:
    """Turns of two processes, with one event for each."""

    def __init__(self, context: Any) -> None:
        self._own = [context.Event() for _ in range(2)]

    def take(self, place: int) -> None:
        """Wait for the event of this process, which the other process sets."""
        self._own[place].wait()
        self._own[place].clear()

    def give(self, place: int) -> None:
        """Set the event of the other process."""
        self._own[1 - place].set()


class ConditionTurns:
    """Turns of two processes, with one condition for each.

    A notification wakes only a process that already waits. So a process that is going
    to wait releases a semaphore while it holds the lock of its condition, and the other
    process acquires this semaphore before it notifies.
    """

    def __init__(self, context: Any) -> None:
        self._own = [context.Condition() for _ in range(2)]
        self._waits = [context.Semaphore(0) for _ in range(2)]

    def take(self, place: int) -> None:
        """Wait for the condition of this process, which the other process notifies."""
        with self._own[place]:
            self._waits[place].release()
            self._own[place].wait()

    def give(self, place: int) -> None:
        """Notify the other process, once it waits."""
        other = 1 - place
        self._waits[other].acquire()
        with self._own[other]:
            self._own[other].notify()


class BarrierTurns:
    """Turns of two processes with one barrier, at which each wait ends a turn."""

    def __init__(self, context: Any) -> None:
        self._barrier = context.Barrier(2)

    def take(self, place: int) -> None:
        """Wait for the other process."""
        self._barrier.wait()

    give = take


PRIMITIVES = {
    "lock": lambda context: PrimitiveTurns(context, "Lock"),
    "semaphore": lambda context: PrimitiveTurns(context, "Semaphore", 0),
    "bounded semaphore": lambda context: PrimitiveTurns(context, "BoundedSemaphore"),
    "event": EventTurns,
    "condition": ConditionTurns,
    "barrier": BarrierTurns,
}
"""The primitives by which two processes can take turns, by name. Each function makes
`Turns` from a context.
"""


def make_turns(actor: Any, primitive: str, method: str) -> Turns:
    """Return turns of two processes.

    Args:
        actor: the actor.
        primitive: one of `PRIMITIVES`.
        method: the start method of the drop-in's context that makes the primitive.
    """
    context = actor.context(method)
    made: Turns = actor.by_implementation(lambda: PRIMITIVES[primitive](context))
    return made


def make_lock(actor: Any, kind: str, method: str) -> Any:
    """Return a ``Lock`` or an ``RLock`` of the drop-in's context."""
    context = actor.context(method)
    return actor.by_implementation(getattr(context, kind))


def write_in_turn_by_messages(
    actor: Any, names: list[str], channel: str, tensors: list[Any], rounds: int
) -> list[str]:
    """Call `write_in_turn`; the actors of `names` pass the turns on by messages."""
    turns = MessageTurns(actor, names, channel)
    return write_in_turn(actor, turns, names.index(actor.name), tensors, rounds)


def write_in_turn(
    actor: Any, turns: Turns, place: int, tensors: list[Any], rounds: int
) -> list[str]:
    """Write to the tensor of this process in each round, and read those of the others.

    `tensors` and the turns have the same order, and `place` is the position of this
    process. In its turn, a process expects the number of this round in the tensors
    before its own, and the number of the previous round in those after its own. The
    first process writes at the beginning of a round. It reads after the turns of all
    others.

    Returns:
        The unexpected readings as sentences, at most `MAX_WRONG_READINGS`.
    """
    wrong: list[str] = []
    for number in range(1, rounds + 1):
        if place == 0:
            write_all(actor, tensors[0], number)
            turns.give(0)
        turns.take(place)
        for other, tensor in enumerate(tensors):
            due = number if other < place or place == 0 else number - 1
            found = actor.call("values", tensor)
            if other != place and found != [due] * len(found):
                wrong.append(f"round {number}: {found} from {other}, not {due}")
        if place != 0:
            write_all(actor, tensors[place], number)
            turns.give(place)
    return wrong[:MAX_WRONG_READINGS]


def write_all(actor: Any, tensor: Any, value: int) -> None:
    """Write one value to all elements, from the last to the first."""
    for index in reversed(range(actor.call("shape", tensor)[0])):
        actor.call("write", tensor, (index,), value)


def add_under_a_lock(actor: Any, lock: Any, tensor: Any, times: int) -> None:
    """Add 1 to the first element `times` times, each time with the lock held."""
    for _ in range(times):
        with lock:
            before = actor.call("read", tensor, (0,))
            actor.call("write", tensor, (0,), before + 1)


def write_and_end(actor: Any, tensor: Any, value: int, how: str) -> None:
    """Write `value` to all elements, and end this process at once.

    Args:
        actor: the actor.
        tensor: the tensor.
        value: the value.
        how: ``by SIGKILL``, ``by returning``, or one of the ways of `actions.end`.
    """
    write_all(actor, tensor, value)
    if how == "by SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "by returning":
        actor.leaving = True
    else:
        end(actor, how)


# A process that reads what another one writes meanwhile


def write_while_read(
    actor: Any, tensor: Any, values: list[int], times: int, reader: str, channel: str
) -> None:
    """Write `values` to the first element in a cycle, `times` times in all.

    The first write waits for a message of the reader. After the last write, the reader
    gets a message.
    """
    actor.do_get(reader, channel)
    for number in range(times):
        actor.call("write", tensor, (0,), values[number % len(values)])
    actor.do_put(reader, channel, None)


def read_while_written(actor: Any, tensor: Any, writer: str, channel: str) -> list[int]:
    """Read the first element until the writer ends; return the values found, sorted."""
    actor.do_put(writer, channel, None)
    found: set[int] = set()
    while not actor.do_has_message(writer, channel):
        found.update(actor.call("read", tensor, (0,)) for _ in range(READS_PER_CHECK))
    actor.do_get(writer, channel)
    return sorted(found)


# Threads that race


@contextmanager
def frequent_thread_switches() -> Iterator[None]:
    """Let the interpreter switch threads as often as possible during the block."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def run_in_parallel(*actions: Callable[[], Any]) -> list[Any]:
    """Run each action in a thread, and let all begin at the same time.

    Returns:
        What the actions return, in their order.

    Raises:
        BaseException: the first exception of an action.
    """
    together = threading.Barrier(len(actions), timeout=THREAD_TIMEOUT)
    returned: list[Any] = [None] * len(actions)
    failed: list[BaseException] = []

    def run(number: int) -> None:
        try:
            together.wait()
            returned[number] = actions[number]()
        except BaseException as error:
            failed.append(error)

    threads = [
        threading.Thread(target=run, args=(number,), daemon=True)
        for number in range(len(actions))
    ]
    with frequent_thread_switches():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]
    return returned


def put_in_parallel(actor: Any, routes: list[list[str]], payload: Any) -> None:
    """Put the payload on each route, an actor and a channel, from a thread for each."""

    def put(route: list[str]) -> Callable[[], None]:
        return lambda: actor.do_put(*route, payload)

    run_in_parallel(*map(put, routes))


def share_and_put_in_parallel(
    actor: Any, tensor: Any, routes: list[list[str]]
) -> list[Any]:
    """Share a tensor in two threads, read it in one, and put it in one for each route.

    Returns:
        The addresses of the tensor after each of the two calls that share it and at the
        end; the values that were read; and whether the tensor was shared after each of
        the two calls.
    """

    def put(route: list[str]) -> bool:
        actor.do_put(*route, tensor)
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


def start_in_parallel(actor: Any, payloads: list[Any], method: str) -> list[int | None]:
    """Start a process for each payload, in a thread for each; return the exit codes."""
    context = actor.context(method)

    def start(payload: Any) -> int | None:
        arguments = (actor.setting, actor.outgoing(payload))
        process = context.Process(target=tasks.add_in_process, args=arguments)
        actor.by_implementation(process.start)
        process.join()
        status: int | None = process.exitcode
        return status

    return run_in_parallel(*(partial(start, payload) for payload in payloads))


def strategy_of_a_child(actor: Any, method: str) -> str:
    """Start a process that sets no strategy, and return which one it has.

    Raises:
        EOFError: the process ends without telling. It is the implementation's.
    """
    context = actor.context(method)
    reader, writer = multiprocessing.Pipe(duplex=False)
    with reader:
        with writer:
            arguments = (actor.setting, writer)
            process = context.Process(target=tasks.tell_strategy, args=arguments)
            actor.by_implementation(process.start)
        found: str = actor.by_implementation(reader.recv)
    process.join()
    process.close()
    return found


def start_in_vain(actor: Any, payload: Any, method: str) -> int | None:
    """Start a process, kill it before it can do its task, and return its exit code."""
    context = actor.context(method)
    arguments = (actor.setting, actor.outgoing(payload))
    process = context.Process(target=tasks.add_in_process, args=arguments)
    actor.by_implementation(process.start)
    process.kill()
    process.join()
    status: int | None = process.exitcode
    process.close()
    return status


class SlowInOtherThreads:
    """An object that is pickled slowly in another thread than the one that made it.

    A call that leaves the pickling to a thread returns before that thread is done.
    """

    def __init__(self) -> None:
        self._thread = threading.current_thread()

    def __reduce__(self) -> Any:
        if threading.current_thread() is not self._thread:
            time.sleep(SLOW_PICKLING)
        return str, ("it was pickled",)


def start_and_write(
    actor: Any, tensors: list[Any], value: int, method: str
) -> tuple[list[bool], int | None]:
    """Start a process with tensors, and write `value` to each when `start` returns.

    The process waits for these writes. Then it adds 1 to each tensor, and ends.

    Returns:
        For each tensor whether it was shared when `start` had returned, and the exit
        code.
    """
    context = actor.context(method)
    written = actor.by_implementation(lambda: context.Semaphore(0))
    payload = [SlowInOtherThreads(), *actor.outgoing(tensors)]
    arguments = (actor.setting, payload, written)
    process = context.Process(target=tasks.add_when_written, args=arguments)
    actor.by_implementation(process.start)
    shared = [actor.call("is_shared", tensor) for tensor in tensors]
    for tensor in tensors:
        actor.call("write", tensor, (0,), value)
    return shared, _exit_code_after_writes(process, written)


def start_with_named_arguments(
    actor: Any, written_later: Any, other: Any, value: int, method: str
) -> int | None:
    """Start a process with two tensors among its named arguments.

    The first tensor is written to when `start` has returned. The process waits for
    that. Then it adds 1 to both, and ends.

    Returns:
        The exit code.
    """
    context = actor.context(method)
    written = actor.by_implementation(lambda: context.Semaphore(0))
    payload = actor.outgoing([written_later, {"other": other}])
    process = context.Process(
        target=tasks.add_when_written,
        args=(actor.setting,),
        kwargs={"payload": payload, "written": written},
    )
    actor.by_implementation(process.start)
    actor.call("write", written_later, (0,), value)
    return _exit_code_after_writes(process, written)


def _exit_code_after_writes(process: Any, written: Any) -> int | None:
    """Let a process go on that waits for writes, and return its exit code."""
    written.release()
    process.join()
    status: int | None = process.exitcode
    process.close()
    return status


def put_from_threads(
    actor: Any, channel: Any, threads: int, per_thread: int
) -> list[Any]:
    """Put `per_thread` messages from each of `threads` threads.

    Returns:
        For each thread the tensors that it put.
    """
    return run_in_parallel(*_put_actions(actor, channel, threads, per_thread))


def get_in_threads(
    actor: Any, channel: Any, threads: int, per_thread: int
) -> list[list[list[Any]]]:
    """Get `per_thread` messages in each of `threads` threads.

    Returns:
        For each thread and message: the thread that put it, its number in that thread,
        and whether its content is right.
    """
    return run_in_parallel(*_get_actions(actor, channel, threads, per_thread))


def put_and_get_in_threads(
    actor: Any, channel: Any, threads: int, per_thread: int
) -> list[list[list[Any]]]:
    """Put and get messages at the same time, from `threads` threads for each.

    Returns:
        The results of `put_from_threads`, followed by those of `get_in_threads`.
    """
    putting = _put_actions(actor, channel, threads, per_thread)
    getting = _get_actions(actor, channel, threads, per_thread)
    return run_in_parallel(*putting, *getting)


def _put_actions(
    actor: Any, channel: Any, threads: int, per_thread: int
) -> list[Callable[[], list[Any]]]:
    def put_all(thread: int) -> list[Any]:
        sent = []
        for number in range(per_thread):
            tensor = actor.call("make", _values(thread, number), (2,), "float32")
            message = [thread, number, tensor, bytes_of_size(_size(thread, number))]
            actor.do_channel_put(channel, message)
            sent.append(tensor)  # so that no tensor is dropped while in flight
        return sent

    return [partial(put_all, thread) for thread in range(threads)]


def _get_actions(
    actor: Any, channel: Any, threads: int, per_thread: int
) -> list[Callable[[], list[list[Any]]]]:
    def get_all() -> list[list[Any]]:
        return [
            _check_message(actor, actor.do_channel_get(channel))
            for _ in range(per_thread)
        ]

    return [get_all] * threads


def _check_message(actor: Any, message: list[Any]) -> list[Any]:
    thread, number, tensor, text = message
    is_whole = text == bytes_of_size(_size(thread, number))
    has_values = actor.call("values", tensor) == _values(thread, number)
    return [thread, number, is_whole and has_values]


def _values(thread: int, number: int) -> list[int]:
    return [1000 * thread + number, -number]


def _size(thread: int, number: int) -> int:
    """Return the size of a message in bytes; one of ten is `LONG_MESSAGE_BYTES`."""
    return LONG_MESSAGE_BYTES if (thread + number) % 10 == 0 else thread + number


# Another thread


def in_a_thread(actor: Any, what: str, *arguments: Any) -> Any:
    """Execute a request of the controller, for example ``module``, in a new thread."""
    return run_in_parallel(partial(getattr(actor, f"do_{what}"), *arguments))[0]


class WaitingThread:
    """A thread that executes a request while its process does others.

    Args:
        request: the request. It waits for other processes or threads.
    """

    def __init__(self, request: Callable[[], Any]) -> None:
        self._request = request
        self._returned: Any = None
        self._failed: list[BaseException] = []
        self._times_woken = ""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._returned = self._request()
        except BaseException as error:
            self._failed.append(error)

    def has_ended_or_waits(self) -> bool:
        """Return whether it has ended, or has waited since the last call of this."""
        if not self._thread.is_alive():
            return True
        with suppress(OSError):  # it ends
            assert self._thread.native_id is not None, "it was started"
            found = process_tree.status(self._thread.native_id)
            before = self._times_woken
            self._times_woken = found["voluntary_ctxt_switches"]
            return found["State"].startswith("S") and self._times_woken == before
        return False

    def answer(self) -> Any:
        """Wait for the end of the thread, and return what the request returned.

        Raises:
            BaseException: the exception of the request.
            ThreadWaits: it goes on waiting.
        """
        self._thread.join(THREAD_TIMEOUT)
        if self._thread.is_alive():
            raise ThreadWaits(f"a thread waits for longer than {THREAD_TIMEOUT:g} s")
        if self._failed:
            raise self._failed[0]
        return self._returned


class ThreadWaits(Exception):
    """A request in a thread did not end in time."""


def start_waiting(actor: Any, what: str, *arguments: Any) -> WaitingThread:
    """Execute a request of the controller in a new thread; return when that waits."""
    thread = WaitingThread(partial(getattr(actor, f"do_{what}"), *arguments))
    process_tree.wait_until(thread.has_ended_or_waits, THREAD_TIMEOUT)
    return thread


def answer_of_thread(actor: Any, thread: WaitingThread) -> Any:
    """Return what the request of a thread returned; see `WaitingThread.answer`."""
    return actor.by_implementation(thread.answer)


# Another process


class ChildFailed(Exception):
    """A request in a forked child raised an exception, or the child ended early."""


def in_a_child(actor: Any, what: str, *arguments: Any) -> Any:
    """Execute a request of the controller, for example ``put``, in a new forked child.

    The child has everything that this process has. The result has to be plain data.
    This process waits until the child has ended. The request can be ``in_a_child``
    itself: the child is no daemon, so it may have children, and it joins them before it
    ends.

    If the request fails, or the child does, `ChildFailed` is raised as an exception of
    the implementation.
    """
    context = actor.context("fork")
    reader, writer = multiprocessing.Pipe(duplex=False)

    def do() -> None:
        try:
            writer.send(["returned", getattr(actor, f"do_{what}")(*arguments)])
        except BaseException as error:
            said = error.__cause__ or error
            writer.send(["raised", f"{type(said).__name__}: {said}"])

    with reader:
        with writer:
            child = context.Process(target=do, daemon=False)
            actor.by_implementation(child.start)
        try:
            outcome, value = reader.recv()
        except EOFError:
            outcome, value = "raised", "it ended before it was done"
    child.join(THREAD_TIMEOUT)
    status = child.exitcode
    if outcome == "returned" and status == 0:
        return value

    def fail() -> None:
        raise ChildFailed(f"a forked child: {value} (its status is {status})")

    return actor.by_implementation(fail)


# A thread that goes on while its process does other things


class Exchange:
    """A thread that puts a new tensor on a queue and gets one, over and over.

    The tensors have the values 0 and the number of the round. Others may use the queue
    at the same time. Each of them, like this thread, puts a message before it gets one.
    So nobody waits for ever, and nothing is left in the end.

    The thread makes the first tensor of its process, unless a test has made one: a fork
    may then copy a lock that the implementation takes at its first use. What the suite
    and the standard library import late is imported by a message without a tensor.
    """

    def __init__(self, actor: Any, channel: Any) -> None:
        self._actor = actor
        self._channel = channel
        self._stop = threading.Event()
        self._failed: list[BaseException] = []
        self._sent: deque[Any] = deque(maxlen=MAX_IN_FLIGHT)
        self._received: list[list[Any]] = []
        self._rounds = 0
        actor.do_channel_put(channel, None)
        actor.do_channel_get(channel)
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
        self._actor.do_channel_put(self._channel, tensor)
        self._rounds += 1
        arrived = self._actor.do_channel_get(self._channel)
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


def start_exchange(actor: Any, channel: Any) -> Exchange:
    """Start a thread that puts on a queue and gets there: see `Exchange`."""
    return Exchange(actor, channel)


def stop_exchange(actor: Any, exchange: Exchange) -> tuple[int, list[list[Any]]]:
    """Stop such a thread; see `Exchange.stop`."""
    return exchange.stop()


# Interruptions


def raise_on_sigint(actor: Any) -> None:
    """Let SIGINT raise `KeyboardInterrupt` in this process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
