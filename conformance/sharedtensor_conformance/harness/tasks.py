"""The tasks that run in the workers of pools and in groups of processes.

All actors also use `map_leaves`, which traverses messages.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Semaphore
from typing import Any

from sharedtensor_conformance.harness import bundles, ledger, records
from sharedtensor_conformance.harness.bundles import Bundle
from sharedtensor_conformance.harness.setting import Setting
from sharedtensor_conformance.harness.wire import PLAIN_TYPES

READY_TIMEOUT = 20.0
"""Seconds that the first of several processes may take to be ready."""

END_INTERVAL, SLOW_END_INTERVAL = 0.5, 1.6
"""Seconds between the ends of two processes that end one after the other.

The second value is more than the one second by which a join may exceed its timeout.
"""

Action = Callable[[int], None]
Failure = Action

_operations: Any = None
_kept: Any = None
_actor_pid = 0


def register_actor() -> int:
    """Note that this process is an actor.

    Returns:
        The pid of the actor from which this process was forked; 0 if there is none.
    """
    global _actor_pid
    before, _actor_pid = _actor_pid, os.getpid()
    return before


def is_forked() -> bool:
    """Return whether this process was forked from an actor and is not one itself."""
    return _actor_pid not in (0, os.getpid())


class MakesWhenPickled:
    """An object that makes a tensor when it is first pickled, and keeps it.

    It arrives as a list with the tensor. The implementation is not asked whether the
    object is a tensor, which could be what first uses it.
    """

    def __init__(self, actor: Any, values: list[Any]) -> None:
        self._actor = actor
        self._values = values
        self.tensor: Any = None

    def __reduce__(self) -> Any:
        if self.tensor is None:
            arguments = self._values, (len(self._values),), "float32"
            self.tensor = self._actor.call("make", *arguments)
        return list, ((self._actor.encode(self.tensor),),)


SENT_AS_THEY_ARE = (*PLAIN_TYPES, MakesWhenPickled)


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return `value` with `change` applied to every object that is no container.

    Plain data is not changed. An object that occurs several times is changed once.
    """
    memo: dict[int, tuple[Any, Any]] = {}

    def walk(item: Any) -> Any:
        if isinstance(item, SENT_AS_THEY_ARE):
            return item
        if type(item) in (list, tuple):
            return type(item)(walk(part) for part in item)
        if isinstance(item, dict):
            return {walk(key): walk(part) for key, part in item.items()}
        if isinstance(item, Bundle):
            return Bundle(walk(item.content))
        if records.is_record(item):
            return records.changed(item, walk)
        if id(item) not in memo:
            memo[id(item)] = (item, change(item))  # keeps `item`, so its id, alive
        return memo[id(item)][1]

    try:
        return walk(value)
    finally:
        memo.clear()  # `walk` is a cycle, which would hold it until it is collected


def prepare_worker(setting: Setting) -> None:
    """Prepare a worker. Pools use this function as initializer."""
    global _operations, _kept
    _operations = setting.operations()
    _operations.enter_child(setting.strategy)
    _kept = None


def _encode(value: Any) -> Any:
    return _operations.encode(value) if _operations.is_tensor(value) else value


def _decode(value: Any) -> Any:
    return _operations.decode(value) if _operations.is_tensor(value) else value


def _call(name: str, *arguments: Any) -> Any:
    return getattr(_operations, name)(*arguments)


def write_and_return(payload: Any, index: tuple[int, ...], value: Any) -> Any:
    """Write `value` at `index` of every tensor, and return the payload."""
    tensors = map_leaves(payload, _decode)

    def write(tensor: Any) -> Any:
        if _operations.is_tensor(tensor):
            _operations.write(tensor, index, value)
        return tensor

    map_leaves(tensors, write)
    return map_leaves(tensors, _encode)


def add_and_return(payload: Any) -> Any:
    """Add 1 to one element of every tensor, and return the payload.

    The element is the first one, or the one at the index "at" of a payload that is a
    dict. Two tasks that add to one element at the same time may lose an addition, so
    tests give each task another element.

    Raises:
        LookupError: the payload is None.
    """
    if payload is None:
        raise LookupError("the worker's own words")
    at = (payload.get("at", 0) if isinstance(payload, dict) else 0,)
    tensors = map_leaves(payload, _decode)

    def add(tensor: Any) -> Any:
        if _operations.is_tensor(tensor):
            _operations.write(tensor, at, _operations.read(tensor, at) + 1)
        return tensor

    map_leaves(tensors, add)
    return map_leaves(tensors, _encode)


def add_in_process(setting: Setting, payload: Any) -> None:
    """Call `add_and_return`, as the function of a process."""
    prepare_worker(setting)
    add_and_return(payload)


def add_when_written(setting: Setting, payload: Any, written: Semaphore) -> None:
    """Call `add_and_return` when the parent has written to the tensors.

    Raises:
        TimeoutError: the parent does not say that it has.
    """
    prepare_worker(setting)
    if not written.acquire(timeout=READY_TIMEOUT):
        raise TimeoutError("the parent of this process did not write")
    add_and_return(payload)


SubmitMethod = Callable[[Any, Callable[..., Any], list[Any]], list[Any]]

SUBMIT_METHODS: dict[str, SubmitMethod] = {
    "apply": lambda pool, do, each: [pool.apply(do, (one,)) for one in each],
    "apply by name": lambda pool, do, each: [
        pool.apply(do, (), {"payload": one}) for one in each
    ],
    "apply_async": lambda pool, do, each: [
        result.get() for result in [pool.apply_async(do, (one,)) for one in each]
    ],
    "map": lambda pool, do, each: pool.map(do, each),
    "map in chunks": lambda pool, do, each: pool.map(do, each, chunksize=2),
    "map_async": lambda pool, do, each: pool.map_async(do, each).get(),
    "apply_async by name": lambda pool, do, each: [
        result.get()
        for result in [pool.apply_async(do, (), {"payload": one}) for one in each]
    ],
    "starmap": lambda pool, do, each: pool.starmap(do, [(one,) for one in each]),
    "starmap_async": lambda pool, do, each: pool.starmap_async(
        do, [(one,) for one in each]
    ).get(),
    "imap": lambda pool, do, each: list(pool.imap(do, each)),
    "imap in chunks": lambda pool, do, each: list(pool.imap(do, each, chunksize=3)),
    "imap_unordered": lambda pool, do, each: [
        next(pool.imap_unordered(do, [one])) for one in each
    ],
}
"""The ways to submit tasks to a pool. Results have the order of the tasks."""


def tell_strategy(setting: Setting, told: Connection) -> None:
    """Send the sharing strategy of a process in which none was set."""
    told.send(strategy(setting))


def strategy(setting: Setting) -> str:
    """Return the sharing strategy of a worker in which none was set."""
    found: str = setting.operations().multiprocessing.get_sharing_strategy()
    return found


def describe_and_write(payload: Any, with_grads: bool) -> list[Any]:
    """Describe a bundle, write to all of its tensors, and describe it again.

    Returns:
        The bundle and the two descriptions.
    """
    bundle = map_leaves(payload, _decode)
    found = [bundles.describe(_call, bundle, with_grads)]
    bundles.write(_call, bundle, with_grads)
    found.append(bundles.describe(_call, bundle, with_grads))
    return [map_leaves(bundle, _encode), *found]


DESCRIPTORS_PROGRAM = """
import os
for number in os.listdir("/proc/self/fd"):
    try:
        print(os.readlink(f"/proc/self/fd/{number}"))
    except FileNotFoundError:
        pass  # that of the folder itself
"""
"""A program that prints the targets of its descriptors."""


def targets_of_a_program(payload: Any) -> list[str]:
    """Return the kinds of descriptors of a program.

    The program is started while this process holds the tensors of the payload.
    """
    import subprocess  # here, since every actor imports this module

    tensors = map_leaves(payload, _decode)
    command = [sys.executable, "-I", "-S", "-c", DESCRIPTORS_PROGRAM]
    said = subprocess.check_output(command, close_fds=False, text=True)
    del tensors
    return [ledger.kind(target) for target in said.splitlines()]


def make_and_keep(values: list[Any], dtype: str) -> Any:
    """Make a tensor, keep it in the worker, and return it."""
    global _kept
    _kept = _operations.make(values, (len(values),), dtype)
    return _encode(_kept)


def make_non_leaf(values: list[Any], dtype: str) -> Any:
    """Make a leaf that requires grad, and return a tensor computed from it."""
    leaf = _operations.make(values, (len(values),), dtype)
    _operations.set_requires_grad(leaf, True)
    return _encode(_operations.non_leaf(leaf))


def read_kept(index: tuple[int, ...]) -> Any:
    """Return one value of the tensor that the worker keeps."""
    return _operations.read(_kept, index)


def write_kept(index: tuple[int, ...], value: Any) -> None:
    """Write one value of the tensor that the worker keeps."""
    _operations.write(_kept, index, value)


def run_in_group(
    index: int, setting: Setting, task: str, ready: Semaphore, *payload: Any
) -> None:
    """Execute a task of `GROUP_TASKS` as process `index` of a group.

    A process that does not fail writes to its element of each tensor in `payload`. It
    then releases `ready`, and in some tasks again at its end.

    If process 1 is to fail, only process 0 releases `ready`, and process 1 acquires it
    first. So process 1 fails after process 0 has written. In a task of four, it fails
    after all others have. The processes that `FAILING_INDICES` names do not wait before
    they fail.
    """
    prepare_worker(setting)
    fails, others = GROUP_TASKS[task]
    awaited = range(3 if "of four" in task else 1)  # by process 1, if it fails
    if task.endswith("refuse to end"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if fails and index in FAILING_INDICES.get(task, [1]):
        if task not in FAILING_INDICES:
            for _ in awaited:
                ready.acquire(timeout=READY_TIMEOUT)
        fails(index)
        return
    first = 1100 if task == "write memory" and is_forked() else 100
    _write_index(index, map_leaves(list(payload), _decode), first)
    if index == 0 or not fails or len(awaited) > 1:
        ready.release()
    others(index)
    if task.endswith("say so"):
        ready.release()


def _write_index(index: int, tensors: list[Any], first: int) -> None:
    """Add `first` + `index` to the element `index` of every tensor.

    It adds to the old value, so that a task that is executed twice is noticed.
    """
    for tensor in tensors:
        value = _operations.read(tensor, (index,))
        _operations.write(tensor, (index,), value + first + index)


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


EXIT_STATUSES = (1, 2, 127, 128, 254, 255)
"""The exit statuses of failing processes."""


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
}
"""The tasks of groups: how a process fails, and what a process does that has written.

The first function runs in process 1, or in those that `FAILING_INDICES` names. The
second runs in all others, after they have added 100 and their index to their elements.
In ``write memory``, forked processes add 1100 and their index.
"""

FAILING_INDICES: dict[str, list[int]] = {
    "first raises": [0],
    "third raises": [2],
    "last of five raises": [4],
    "third raises, others end": [2],
    "all raise": [0, 1, 2, 3],
    "first and third are killed": [0, 2],
}
"""The indices of the failing processes, for tasks in which it is not process 1."""
