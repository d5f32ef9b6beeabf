"""Executes functions in another thread, or in a forked child, of an actor."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from sharedtensor_conformance.harness.kernel import process_tree
from sharedtensor_conformance.harness.remote.actor import Actor

Result = TypeVar("Result")

THREAD_TIMEOUT = 10.0
"""Seconds to wait for a thread."""

SWITCH_INTERVAL = 1e-6
"""Seconds after which the interpreter switches threads, so short that they race."""


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


def put_in_parallel(actor: Actor, routes: list[list[str]], payload: Any) -> None:
    """Put the payload on each route, an actor and a channel, from a thread for each."""

    def put(route: list[str]) -> Callable[[], None]:
        to, name = route
        return lambda: actor.put(to, name, payload)

    run_in_parallel(*map(put, routes))


def in_a_thread(
    actor: Actor, function: Callable[..., Result], *arguments: Any
) -> Result:
    """Execute a function of the suite, such as `Actor.get`, in a new thread."""
    returned: list[Result] = run_in_parallel(partial(function, actor, *arguments))
    return returned[0]


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


def start_waiting(actor: Actor, function: Callable[..., Any], *arguments: Any) -> Any:
    """Execute a function of the suite in a new thread; return it when it waits."""
    thread = WaitingThread(partial(function, actor, *arguments))
    process_tree.wait_until(thread.has_ended_or_waits, THREAD_TIMEOUT)
    return thread


def answer_of_thread(actor: Actor, thread: Any) -> Any:
    """Return what the request of a thread returned; see `WaitingThread.answer`."""
    return actor.by_implementation(thread.answer)


class ChildFailed(Exception):
    """A request in a forked child raised an exception, or the child ended early."""


def in_a_child(
    actor: Actor, function: Callable[..., Result], *arguments: Any
) -> Result:
    """Execute a function of the suite, such as `Actor.put`, in a new forked child.

    The child has everything that this process has. The result has to be plain data.
    This process waits until the child has ended. The function can be `in_a_child`
    itself: the child is no daemon, so it may have children, and it joins them before it
    ends.

    If the function fails, or the child does, `ChildFailed` is raised as an exception of
    the implementation.
    """
    context = actor.context("fork")
    reader, writer = multiprocessing.Pipe(duplex=False)

    def do() -> None:
        try:
            writer.send(["returned", function(actor, *arguments)])
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
        result: Result = value
        return result

    def fail() -> Result:
        raise ChildFailed(f"a forked child: {value} (its status is {status})")

    failed: Result = actor.by_implementation(fail)
    return failed
