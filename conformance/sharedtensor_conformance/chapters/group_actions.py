"""Groups of processes that an actor starts by one call, and their tasks.

`run_in_group` is the function of each process.
"""

from __future__ import annotations

import inspect
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.synchronize import Semaphore
from typing import Any

from sharedtensor_conformance.chapters.worker_tasks import (
    READY_TIMEOUT,
    WORKER,
    prepare_worker,
)
from sharedtensor_conformance.harness.remote.actor import Actor, is_forked
from sharedtensor_conformance.harness.remote.marks import starts_processes
from sharedtensor_conformance.harness.remote.setting import Setting

END_INTERVAL, SLOW_END_INTERVAL = 0.5, 1.6
"""Seconds between the ends of two processes that end one after the other.

The second value is more than the one second by which a join may exceed its timeout.
"""

Action = Callable[[int], None]

Failure = Action

Start = Callable[..., Any]

MESSAGES = {
    "short": "the worker's own words",
    "long": f"begins here {'and goes on ' * 500}and ends here",
    "very long": f"begins here {'and goes on ' * 20_000}and ends here",
    "of many lines": "\n".join(f"line {number} of the text" for number in range(50)),
    "in many scripts": "größer, 値, ценность, \N{GRINNING FACE}",
    "of undecodable bytes": os.fsdecode(b"caf\xe9"),
}
"""The messages of exceptions, by name."""

CALL_DEPTH = 300
"""The number of calls between the function of a process and its exception."""

DAEMONS_ADD = 5000
"""What a daemon adds to its elements in ``write memory``, beside the other number."""

EXIT_STATUSES = (1, 2, 127, 128, 254, 255)
"""The exit statuses of failing processes."""

FAILING_INDICES: dict[str, list[int]] = {
    "first raises": [0],
    "third raises": [2],
    "last of five raises": [4],
    "third raises, others end": [2],
    "all raise": [0, 1, 2, 3],
    "first and third are killed": [0, 2],
    **{
        f"{place} {end} on request": [index]
        for index, place in enumerate(("first", "second", "third"))
        for end in ("raises", "exits", "is killed")
    },
}
"""The indices of the failing processes, for tasks in which it is not process 1."""


class GroupNotReady(Exception):
    """A process of a group did not become ready in time."""


def _by_name(start: Start, given: dict[str, Any]) -> Any:
    return start(**given)


def _by_position(start: Start, given: dict[str, Any]) -> Any:
    return start(*given.values())


def _partly_by_name(start: Start, given: dict[str, Any]) -> Any:
    fn, args, *_ = given.values()
    names = ("nprocs", "join", "start_method")
    return start(fn, args, **{name: given[name] for name in names if name in given})


def _with_a_list(start: Start, given: dict[str, Any]) -> Any:
    return _partly_by_name(start, given | {"args": [*given["args"]]})


def _with_defaults(start: Start, given: dict[str, Any]) -> Any:
    defaults = {"nprocs": 1, "join": True, "daemon": False, "start_method": "spawn"}
    return start(**{k: v for k, v in given.items() if defaults.get(k) != v})


CALL_FORMS: dict[str, Callable[[Start, dict[str, Any]], Any]] = {
    "partly by name": _partly_by_name,
    "by name": _by_name,
    "by position": _by_position,
    "with a list": _with_a_list,
    "with defaults": _with_defaults,
}
"""The ways to pass the arguments of `spawn` and `start_processes`."""


@starts_processes
def start_group(
    actor: Actor,
    task: str,
    count: int,
    payload: Any,
    how: str,
    join: bool,
    form: str = "partly by name",
    daemon: bool = False,
) -> Any:
    """Start `count` processes that execute a task of `GROUP_TASKS`.

    Args:
        actor: the actor.
        task: the name of the task.
        count: the number of processes.
        payload: the tensors for the task.
        how: ``spawn()``, or the start method for ``start_processes()``.
        join: whether the call waits until the processes have ended.
        form: how the arguments are passed, one of the `CALL_FORMS`.
        daemon: whether the processes are daemons, where the form says so.

    Returns:
        The outcome of the call if it waits, otherwise a `Group`.
    """
    module = actor.operations.multiprocessing
    context = actor.context("spawn" if how == "spawn()" else how)
    ready = actor.by_implementation(lambda: context.Semaphore(0))
    arguments = (actor.setting, task, ready, *actor.outgoing(payload))
    given = {"fn": run_in_group, "args": arguments, "nprocs": count, "join": join}
    given["daemon"] = daemon
    start = module.spawn
    if how != "spawn()":
        start, given["start_method"] = module.start_processes, how
    started = _result_or_failure(actor, lambda: CALL_FORMS[form](start, given))
    return started if join else Group(started, ready)


@starts_processes
def start_group_and_wait(
    actor: Actor, task: str, count: int, payload: Any, how: str, timeout: float
) -> Any:
    """Start a group of processes, and return it when all of its processes are ready.

    `timeout` is the limit in seconds for each process. If it is exceeded,
    `GroupNotReady` is raised as an exception of the implementation.
    """
    group = start_group(actor, task, count, payload, how, False)
    if group_is_ready(actor, group, count, timeout):
        return group

    def fail() -> None:
        raise GroupNotReady(
            f"a process of a group of {count} was not ready within {timeout:g} s"
        )

    return actor.by_implementation(fail)


@dataclass(frozen=True)
class Group:
    """A group of processes that run.

    A child may open the semaphore by its name late, so the group keeps the semaphore.

    Args:
        context: what the implementation returned for the processes.
        ready: the semaphore that each process releases when it is ready.
    """

    context: Any
    ready: Any


def let_one_fail(actor: Actor, group: Any) -> None:
    """Let the process of a group fail whose task is to fail on request."""
    group.ready.release()


@starts_processes
def join_group(
    actor: Actor, group: Any, timeout: float | None, grace: float | None
) -> Any:
    """Join a group of processes, and return the outcome.

    Args:
        actor: the actor.
        group: the group.
        timeout: the limit in seconds; None for no limit.
        grace: the ``grace_period`` in seconds, if the implementation has this
            parameter.
    """
    join, options = group.context.join, {}
    if grace is not None and "grace_period" in inspect.signature(join).parameters:
        options["grace_period"] = grace
    return _result_or_failure(actor, lambda: join(timeout, **options))


@starts_processes
def group_pids(actor: Actor, group: Any) -> list[int]:
    """Return the process ids of a group."""
    pids = actor.by_implementation(lambda: group.context.pids())
    return [int(pid) for pid in pids]


def signal_process(actor: Actor, group: Any, index: int, number: int) -> None:
    """Send a signal to one process of a group."""
    os.kill(group_pids(actor, group)[index], number)


def group_is_ready(actor: Actor, group: Any, count: int, timeout: float) -> bool:
    """Wait until `count` processes of a group are ready; return whether they are.

    `timeout` is the limit in seconds for each process.
    """
    return all(group.ready.acquire(timeout=timeout) for _ in range(count))


def _result_or_failure(actor: Actor, action: Callable[[], Any]) -> Any:
    """Return what `action` returns, or the failure of a process as plain data."""
    module = actor.operations.multiprocessing
    kinds = {
        name: getattr(module, name)
        for name in ("ProcessRaisedException", "ProcessExitedException")
    }

    def attempt() -> Any:
        try:
            return action()
        except tuple(kinds.values()) as error:
            fields = ("error_index", "error_pid", "exit_code", "signal_name")
            kind = [name for name, one in kinds.items() if isinstance(error, one)]
            known = {name: getattr(error, name, None) for name in fields}
            return {"kind": kind, "message": str(error), **known}

    return actor.by_implementation(attempt)


def run_in_group(
    index: int, setting: Setting, task: str, ready: Semaphore, *payload: Any
) -> None:
    """Execute a task of `GROUP_TASKS` as process `index` of a group.

    A process that does not fail writes to its element of each tensor in `payload`. It
    then releases `ready`, and in some tasks again at its end.

    If process 1 is to fail, only process 0 releases `ready`, and process 1 acquires it
    first. So process 1 fails after process 0 has written. In a task of four, it fails
    after all others have. The processes that `FAILING_INDICES` names do not wait before
    they fail, except for `let_one_fail` in tasks of that name.
    """
    prepare_worker(setting)
    fails, others = GROUP_TASKS[task]
    fails_on_request = task.endswith("on request")
    awaited = range(3 if "of four" in task else 1)  # by process 1, if it fails
    if task.endswith("refuse to end"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if fails and index in FAILING_INDICES.get(task, [1]):
        if task not in FAILING_INDICES or fails_on_request:
            for _ in awaited:
                ready.acquire(timeout=READY_TIMEOUT)
        fails(index)
        return
    first = 1100 if task == "write memory" and is_forked() else 100
    if task == "write memory" and multiprocessing.current_process().daemon:
        first += DAEMONS_ADD
    _write_index(index, WORKER.decoded(list(payload)), first)
    if not fails_on_request and (index == 0 or not fails or len(awaited) > 1):
        ready.release()
    others(index)
    if task.endswith("say so"):
        ready.release()


def _write_index(index: int, tensors: list[Any], first: int) -> None:
    """Add `first` + `index` to the element `index` of every tensor.

    It adds to the old value, so that a task that is executed twice is noticed.
    """
    for tensor in tensors:
        value = WORKER.call("read", tensor, (index,))
        WORKER.call("write", tensor, (index,), value + first + index)


def _end(index: int) -> None:
    """Return, so that the process exits with status 0."""


def _wait(index: int) -> None:
    """Wait for a signal that ends the process."""
    while True:
        signal.pause()


def _end_in_turn(interval: float) -> Action:
    """Return an action that ends process n after (n + 1) * `interval` seconds.

    With it, tests measure how long joining takes.
    """

    def end(index: int) -> None:
        time.sleep(interval * (index + 1))

    return end


def _raise(index: int) -> None:
    raise LookupError("the worker's own words")


def _raise_own_message(index: int) -> None:
    raise LookupError(message_of(index))


def message_of(index: int) -> str:
    """Return the message of the exception that process `index` raises."""
    return f"the words of process {index} alone"


class Unsendable(Exception):
    """An exception that cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("this exception of the suite cannot be pickled")


def _raise_message(name: str) -> Failure:
    def fail(index: int) -> None:
        raise LookupError(MESSAGES[name])

    return fail


def _raise_below(index: int, depth: int = CALL_DEPTH) -> None:
    """Raise in a deep recursion.

    The calls alternate between two lines, because a traceback abbreviates repeated
    lines.
    """
    if depth == 0:
        _raise(index)
    elif depth % 2:
        _raise_below(index, depth - 1)
    else:
        _raise_below(index, depth - 1)


def _raise_unsendable(index: int) -> None:
    raise Unsendable(MESSAGES["short"])


def _interrupt_the_second(index: int) -> None:
    """Raise `KeyboardInterrupt`, as SIGINT does, in process 1; wait in the others."""
    if index == 1:
        raise KeyboardInterrupt
    _wait(index)


def _exit(index: int) -> None:
    sys.exit(7)


def _exit_with(status: object) -> Failure:
    def fail(index: int) -> None:
        sys.exit(status)  # type: ignore[arg-type]

    return fail


def _exit_at_once(index: int) -> None:
    os._exit(EXIT_STATUSES[-1])


def _die(index: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


GROUP_TASKS: dict[str, tuple[Failure | None, Action]] = {
    "write index": (None, _end),
    "write memory": (None, _end),
    "wait": (None, _wait),
    "end in turn": (None, _end_in_turn(END_INTERVAL)),
    "end in turn and say so": (None, _end_in_turn(END_INTERVAL)),
    "end slowly in turn": (None, _end_in_turn(SLOW_END_INTERVAL)),
    "exit with 0": (None, _exit_with(0)),
    "exit with None": (None, _exit_with(None)),
    "second raises": (_raise, _wait),
    **{f"second raises {text}": (_raise_message(text), _wait) for text in MESSAGES},
    "second raises below many calls": (_raise_below, _wait),
    "second raises what cannot be sent": (_raise_unsendable, _wait),
    "second interrupts itself": (None, _interrupt_the_second),
    "second exits": (_exit, _wait),
    "second is killed": (_die, _wait),
    "second raises, others refuse to end": (_raise, _wait),
    "second of four raises, others refuse to end": (_raise, _wait),
    **{f"second exits with {n}": (_exit_with(n), _wait) for n in EXIT_STATUSES},
    "second exits with a text": (_exit_with("a text"), _wait),
    "second exits with None": (_exit_with(None), _end),
    "second ends at once": (_exit_at_once, _wait),
    "first raises": (_raise_own_message, _wait),
    "third raises": (_raise_own_message, _wait),
    "last of five raises": (_raise_own_message, _wait),
    "third raises, others end": (_raise_own_message, _end),
    "all raise": (_raise_own_message, _end),
    "first and third are killed": (_die, _wait),
    **{
        f"{place} {end} on request": (fails, _end)
        for place in ("first", "second", "third")
        for end, fails in (("raises", _raise), ("exits", _exit), ("is killed", _die))
    },
}
"""The tasks of groups: how a process fails, and what a process does that has written.

The first function runs in process 1, or in those that `FAILING_INDICES` names. The
second runs in all others, after they have added 100 and their index to their elements.
In ``write memory``, forked processes add 1100 and their index, and daemons
`DAEMONS_ADD` more.
"""
