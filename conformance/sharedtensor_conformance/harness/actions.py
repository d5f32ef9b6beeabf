"""Actions of an actor other than making and sending tensors.

An actor executes the action that the controller names. For example, it hides a tensor
where only the garbage collector or the end of the interpreter finds it, ends in one of
the ways in which programs end, starts another program or becomes one, or starts a group
of processes.

The first argument of each function is the actor.
"""

from __future__ import annotations

import atexit
import copy
import gc
import inspect
import os
import pickle
import resource
import signal
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sharedtensor_conformance.harness import bundles, ledger, records, tasks
from sharedtensor_conformance.harness.bundles import Bundle
from sharedtensor_conformance.harness.checks import wait_until

PROGRAM = [sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"]
"""Another program: it waits for the signal that ends it."""

STRATEGY_PROGRAM = """
import resource, sys
for limit in sys.argv[1:]:
    name, _, value = limit.partition("=")
    _, hard = resource.getrlimit(getattr(resource, name))
    resource.setrlimit(getattr(resource, name), (int(value), hard))
from sharedtensor_conformance.harness.setting import Setting
operations = Setting.from_environment().operations()
print(operations.multiprocessing.get_sharing_strategy())
"""
"""A program that sets its own limits before it imports the implementation."""

THREAD_TIMEOUT = 10.0
"""Seconds that a thread may take."""


class Unpicklable:
    """An object that raises when it is pickled."""

    def __reduce__(self) -> Any:
        raise ValueError("this object of the suite cannot be pickled")


class Unreceivable:
    """An object that raises when it is unpickled."""

    def __reduce__(self) -> Any:
        return _refuse_to_arrive, ()


def _refuse_to_arrive() -> None:
    raise ValueError("this object of the suite cannot be unpickled")


class Sending:
    """An object that sends something else while it is pickled, as one that logs."""

    def __init__(self, send: Callable[[], None]) -> None:
        self.send = send

    def __reduce__(self) -> Any:
        self.send()
        return str, ("it was sent",)


class Uncaught(Exception):
    """An exception that ends a process which does not catch it."""


class Ballast:
    """An object of a given size, next to tensors in a message."""

    def __init__(self, size: int) -> None:
        self.content = content(size)


def content(size: int) -> bytes:
    """Return `size` bytes in which no two parts are equal."""
    return (b"%d," % size * (size // 2 + 1))[:size]


# Objects that cannot be sent, or that send


def unpicklable(actor: Any) -> Unpicklable:
    """Return an object that raises when it is sent."""
    return Unpicklable()


def unreceivable(actor: Any) -> Unreceivable:
    """Return an object that raises when it is received."""
    return Unreceivable()


def sending(actor: Any, to: str, channel: str, payload: Any) -> Sending:
    """Return an object that puts a payload on a channel while it is pickled.

    That may be in a thread, and at the end of the process: it has what it needs.
    """
    message, pair = actor.outgoing(payload), actor.pair_with(to, channel)
    return Sending(lambda: pair.put(actor.name, channel, message))


# Copies that no channel makes


def pickled(actor: Any, value: Any) -> bytes:
    """Return a pickle of a value, as for a file."""
    content: bytes = actor.by_implementation(lambda: pickle.dumps(value))
    return content


def unpickled(actor: Any, content: bytes) -> Any:
    """Return what is in a pickle."""
    return actor.by_implementation(lambda: pickle.loads(content))


def deep_copy(actor: Any, value: Any) -> Any:
    """Return a deep copy of a value."""
    return actor.by_implementation(lambda: copy.deepcopy(value))


# Objects with tensors in their attributes


def make_record(actor: Any, kind: str, first: Any, second: Any) -> Any:
    """Return a record of a kind: see `records`."""
    return records.RECORDS[kind](first, second)


def look_at_record(actor: Any, record: Any) -> list[Any]:
    """Return the kind of a record and its two attributes."""
    return [records.kind_of(record), record.first, record.second]


# Messages of every size


def ballast(actor: Any, size: int) -> Ballast:
    """Return an object of `size` bytes."""
    return Ballast(size)


def is_ballast(actor: Any, value: Any, size: int) -> bool:
    """Return whether this is what `ballast` returned in another process."""
    return isinstance(value, Ballast) and value.content == content(size)


def make_long(actor: Any, length: int, value: int) -> Any:
    """Return a tensor of `length` elements with one value, made in this process."""
    return actor.call("make", [value] * length, (length,), "float32")


def make_many(actor: Any, count: int, first: int) -> list[Any]:
    """Return tensors of one element each: `first` and the numbers after it."""
    numbers = range(first, first + count)
    return [actor.call("make", [number], (1,), "float32") for number in numbers]


def wrong_beginnings(actor: Any, tensors: list[Any], first: int) -> list[int]:
    """Return the places of the tensors that do not begin with `first` and so on."""
    found = [actor.call("read", tensor, (0,)) for tensor in tensors]
    return [n for n, value in enumerate(found) if value != first + n]


def first_values(actor: Any, tensor: Any, count: int) -> list[Any]:
    """Return the first elements of a tensor."""
    return [actor.call("read", tensor, (index,)) for index in range(count)]


def make_many_long(
    actor: Any, count: int, length: int, dtype: str = "float32"
) -> list[Any]:
    """Return tensors of `length` elements each, which begin with 1, 2 and so on."""
    tail = [0] * (length - 1)
    made = range(1, count + 1)
    return [actor.call("make", [n, *tail], (length,), dtype) for n in made]


def share_each(actor: Any, tensors: list[Any]) -> None:
    """Share each tensor by a separate call."""
    for tensor in tensors:
        actor.call("share", tensor)


def mapped_sizes(actor: Any) -> dict[str, int]:
    """Return how much of each file of shared memory the process has mapped."""
    return ledger.mapped_sizes(os.getpid())


def file_of(actor: Any, tensor: Any) -> str:
    """Return in which file's mapping a tensor's first element lies; "" for none."""
    return ledger.file_at(os.getpid(), actor.call("address", tensor))


def drop_all_but(actor: Any, kept: list[Any]) -> None:
    """Drop all objects that the process has for the suite, except some tensors."""
    held = actor.objects.items()
    actor.do_drop(*(key for key, value in held if all(value is not k for k in kept)))


def wrong_ones(actor: Any, tensors: list[Any], first: int) -> list[int]:
    """Return the places of the tensors that `make_many` has not made like this."""
    found = [actor.call("values", tensor) for tensor in tensors]
    due = [[first + place] for place in range(len(tensors))]
    return [place for place, value in enumerate(found) if value != due[place]]


def put_sizes(actor: Any, channel: Any, tensor: Any, first: int, count: int) -> None:
    """Put a message of each of `count` sizes, a tensor and bytes."""
    for size in range(first, first + count):
        actor.do_channel_put(channel, [tensor, content(size)])


def put_bytes_of_sizes(actor: Any, channel: Any, sizes: list[int], form: str) -> None:
    """Send bare bytes of each size, in one of the forms of `channels.FORMS`."""
    for size in sizes:
        actor.by_implementation(
            lambda size=size: channel.put_bytes_as(form, content(size))
        )


def get_bytes_of_sizes(actor: Any, channel: Any, sizes: list[int]) -> list[int]:
    """Receive bare bytes of each size; return the sizes that arrive otherwise.

    The receiver says in turn no bound, the size itself, and bounds that leave room.
    """
    wrong = []
    for number, size in enumerate(sizes):
        bounds = ((), (size,), (size + 1,), (2 * size + 300,))[number % 4]
        received: bytes = actor.by_implementation(
            lambda bounds=bounds: channel.reader.recv_bytes(*bounds)
        )
        if received != content(size):
            wrong.append(size)
    return wrong


def put_of_sizes(actor: Any, channel: Any, tensor: Any, sizes: list[int]) -> None:
    """Put a message of each size: a tensor, or None, and bytes."""
    for size in sizes:
        actor.do_channel_put(channel, [tensor, content(size)])


def get_of_sizes(
    actor: Any, channel: Any, values: list[Any] | None, sizes: list[int]
) -> list[int]:
    """Get these messages; return the sizes of those that arrive otherwise."""
    wrong = []
    for size in sizes:
        tensor, beside = actor.do_channel_get(channel)
        found = None if tensor is None else actor.call("values", tensor)
        if beside != content(size) or found != values:
            wrong.append(size)
        del tensor
    return wrong


def put_sweep(actor: Any, channel: Any, below: int, step: int) -> None:
    """Put a message of bytes of each of these sizes."""
    put_of_sizes(actor, channel, None, list(range(0, below, step)))


def get_sweep(actor: Any, channel: Any, below: int, step: int) -> list[int]:
    """Get these messages; return the sizes of those that arrive otherwise."""
    return get_of_sizes(actor, channel, None, list(range(0, below, step)))


def put_bytes_of_a_sweep(actor: Any, channel: Any, below: int, step: int) -> None:
    """Send bare bytes of each of these sizes."""
    put_bytes_of_sizes(actor, channel, list(range(0, below, step)), "bytes")


def get_bytes_of_a_sweep(actor: Any, channel: Any, below: int, step: int) -> list[int]:
    """Receive these; return the sizes that arrive otherwise."""
    return get_bytes_of_sizes(actor, channel, list(range(0, below, step)))


def put_pile(actor: Any, channel: Any, first: int, count: int, size: int) -> None:
    """Put `count` messages of this size without tensors, numbered from `first` on."""
    for number in range(first, first + count):
        message = {"number": number, "tensors": [], "ballast": Ballast(size)}
        actor.do_channel_put(channel, message)


def put_back(actor: Any, channel: Any, count: int) -> None:
    """Send so many messages on a pipe of two directions, by its reader."""
    for number in range(count):
        actor.by_implementation(lambda number=number: channel.reader.send(number))


def get_pile(
    actor: Any, channel: Any, first: int, count: int, size: int, seconds: float
) -> list[int]:
    """Get what `put_pile` has put; return the numbers of those that do not arrive so.

    After one that does not come within so many seconds nothing is waited for.
    """
    for number in range(first, first + count):
        found = actor.do_channel_get_within(channel, seconds)
        if not found:
            return list(range(number, first + count))
        if found[0]["number"] != number or not is_ballast(
            actor, found[0]["ballast"], size
        ):
            return [number]
    return []


def get_sizes(
    actor: Any, channel: Any, values: list[Any], first: int, count: int
) -> list[int]:
    """Get these messages; return the sizes of those that arrived otherwise."""
    wrong = []
    for size in range(first, first + count):
        message = actor.do_channel_get(channel)
        is_whole = isinstance(message, list) and message[1:] == [content(size)]
        if not is_whole or actor.call("values", message[0]) != values:
            wrong.append(size)
        del message
    return wrong


# Threads


def begin_idle_thread(actor: Any) -> None:
    """Start a thread that waits until `end_idle_threads` is called."""
    until = threading.Event()
    thread = threading.Thread(target=until.wait, daemon=True)
    thread.start()
    actor.idle_threads.append((thread, until))


def end_idle_threads(actor: Any) -> None:
    """End the threads that `begin_idle_thread` has started in this process."""
    while actor.idle_threads:
        thread, until = actor.idle_threads.pop()
        until.set()
        thread.join(THREAD_TIMEOUT)


# Descriptors


def occupy_descriptors(actor: Any, below: int) -> None:
    """Occupy all descriptors below a number, so that what is opened next is above."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * below), hard))
    taken = actor.taken = []
    while not taken or taken[-1] < below:
        taken.append(os.open(os.devnull, os.O_RDONLY))
    os.close(taken.pop())
    actor.soft_limit = soft


def vacate_descriptors(actor: Any) -> None:
    """Close these again."""
    while actor.taken:
        os.close(actor.taken.pop())
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (actor.soft_limit, hard))


# Bundles: a process that has none of grads does not ask for them


def make_bundle(actor: Any, plan: list[dict[str, Any]], plain: Any) -> Bundle:
    """Return a bundle with the tensors of a plan: see `bundles.make`."""
    return bundles.make(actor.call, plan, plain)


def describe_bundle(actor: Any, bundle: Bundle, with_grads: bool) -> dict[str, Any]:
    """Return what can be seen of a bundle: see `bundles.describe`."""
    return bundles.describe(actor.call, bundle, with_grads)


def strides_of_bundle(actor: Any, bundle: Bundle) -> list[list[int]]:
    """Return the strides of what is not contiguous in a bundle."""
    return bundles.strides(actor.call, bundle)


def addresses_in_bundle(actor: Any, bundle: Bundle) -> list[int]:
    """Return the addresses of the tensors in a bundle that have elements."""
    tensors = bundles.tensors_in(actor.call, bundle)
    full = [one for one in tensors if 0 not in actor.call("shape", one)]
    return [actor.call("address", one) for one in full]


def write_bundle(actor: Any, bundle: Bundle, with_grads: bool) -> None:
    """Write to every tensor of a bundle."""
    bundles.write(actor.call, bundle, with_grads)


def share_bundle(actor: Any, bundle: Bundle) -> None:
    """Share every tensor of a bundle."""
    for tensor in bundles.tensors_in(actor.call, bundle):
        actor.call("share", tensor)


def get_and_write_bundle(
    actor: Any, sender: str, channel: str, with_grads: bool
) -> list[Any]:
    """Get a bundle, look at it, write to it, and look again."""
    bundle = actor.do_get(sender, channel)
    found = [describe_bundle(actor, bundle, with_grads)]
    write_bundle(actor, bundle, with_grads)
    return [*found, describe_bundle(actor, bundle, with_grads)]


# Hiding places


def hide(actor: Any, key: str, where: str) -> None:
    """Put a tensor where the suite does not find it, and drop the suite's reference."""
    tensor = actor.objects.pop(key)
    HIDING_PLACES[where](tensor)


def drop_in_a_thread(actor: Any, key: str) -> None:
    """Drop the last reference to a tensor in another thread."""
    held = [actor.objects.pop(key)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join(THREAD_TIMEOUT)


def collect_garbage(actor: Any) -> None:
    """Run the garbage collector."""
    gc.collect()


class Cycle:
    """An object that refers to itself, and to a tensor."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.itself = self


def _in_a_cycle(tensor: Any) -> None:
    Cycle(tensor)


def _in_a_module(tensor: Any) -> None:
    module = types.ModuleType(f"hiding_place_{id(tensor)}")
    module.__dict__["tensor"] = tensor
    sys.modules[module.__name__] = module


def _in_the_main_module(tensor: Any) -> None:
    sys.modules["__main__"].__dict__[f"tensor_{id(tensor)}"] = tensor


def _in_a_cycle_of_a_module(tensor: Any) -> None:
    _in_a_module(Cycle(tensor))


def _in_a_thread(tensor: Any) -> None:
    begun = threading.Event()

    def hold(held: Any) -> None:
        begun.set()
        threading.Event().wait()

    threading.Thread(target=hold, args=(tensor,), daemon=True).start()
    wait_until(begun.is_set, THREAD_TIMEOUT)


def _in_an_exit_function(tensor: Any) -> None:
    atexit.register(lambda held: None, tensor)


def _in_a_class(tensor: Any) -> None:
    _in_a_module(type("HidingPlace", (), {"tensor": tensor}))


HIDING_PLACES: dict[str, Callable[[Any], None]] = {
    "a cycle": _in_a_cycle,
    "a module": _in_a_module,
    "the main module": _in_the_main_module,
    "a cycle of a module": _in_a_cycle_of_a_module,
    "a thread": _in_a_thread,
    "an exit function": _in_an_exit_function,
    "a class": _in_a_class,
}
"""Where a tensor can be when a process ends; only the first is garbage."""


# Ends and other programs


def end(actor: Any, how: str) -> None:
    """End this process ``by os._exit``, ``by an exception`` or ``by SIGTERM``."""
    if how == "by os._exit":
        os._exit(0)
    if how == "by SIGTERM":
        os.kill(os.getpid(), signal.SIGTERM)
    actor.uncaught = Uncaught("this exception of the suite ends the process")


def become_a_program(actor: Any) -> None:
    """Replace this process by another program."""
    os.execv(PROGRAM[0], PROGRAM)


def start_a_program(actor: Any) -> int:
    """Start another program, which gets what is inheritable; return its pid."""
    import subprocess  # here, since every actor imports this module

    process = subprocess.Popen(PROGRAM, close_fds=False)
    actor.programs.append(process)
    return process.pid


def strategy_of_a_program(
    actor: Any, limits: dict[str, int], variables: dict[str, str]
) -> str:
    """Return the strategy of a program that imports the implementation and sets none.

    Args:
        actor: the process that starts it.
        limits: soft limits that the program has, by the names of `resource`.
        variables: what it has in its environment besides.
    """
    import subprocess  # here, since every actor imports this module

    done = subprocess.run(
        [
            sys.executable,
            "-c",
            STRATEGY_PROGRAM,
            *(f"{k}={v}" for k, v in limits.items()),
        ],
        env=os.environ
        | actor.setting.environment()
        | {"PYTHONPATH": os.pathsep.join(sys.path)}
        | variables,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip() or f"none: {done.stderr[-300:]}"


def strategies_after_a_change(actor: Any, added: str) -> tuple[set[str], list[str]]:
    """Empty a set of strategies that the module returned, and add one to it.

    Return what the module returns then, and which of all these names can be set. In the
    end the set is as it was, since it may be the one that the module goes by.
    """
    module = actor.operations.multiprocessing

    def can_be_set(name: str) -> bool:
        try:
            module.set_sharing_strategy(name)
        except Exception:
            return False
        return True

    def change() -> tuple[set[str], list[str]]:
        current = module.get_sharing_strategy()
        returned = module.get_all_sharing_strategies()
        before = set(returned)
        names = sorted({*before, added})
        if isinstance(returned, set):
            returned.clear()
            returned.add(added)
        try:
            again = set(module.get_all_sharing_strategies())
            return again, [name for name in names if can_be_set(name)]
        finally:
            if isinstance(returned, set):
                returned.clear()
                returned.update(before)
            module.set_sharing_strategy(current)

    result: tuple[set[str], list[str]] = actor.by_implementation(change)
    return result


def end_programs(actor: Any) -> None:
    """End the programs that this process has started."""
    while actor.programs:
        process = actor.programs.pop()
        process.kill()
        process.wait()


# The environment that the processes have which it starts


def variable(actor: Any, name: str) -> str | None:
    """Return a variable of the environment; None if it is not set."""
    return os.environ.get(name)


def set_variable(actor: Any, name: str, value: str | None) -> None:
    """Set a variable of the environment, or remove it if the value is None."""
    os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value


# Groups of processes


def start_group(
    actor: Any, task: str, count: int, payload: Any, how: str, join: bool
) -> Any:
    """Start `count` processes for a task, by ``spawn()`` or by a start method."""
    module = actor.operations.multiprocessing
    context = actor.context("spawn" if how == "spawn()" else how)
    ready = actor.by_implementation(lambda: context.Semaphore(0))
    arguments = (actor.setting, task, ready, *actor.outgoing(payload))
    options: dict[str, Any] = {"nprocs": count, "join": join}
    start = module.spawn
    if how != "spawn()":
        start, options["start_method"] = module.start_processes, how
    started = _outcome_of(
        actor, lambda: start(tasks.run_in_group, arguments, **options)
    )
    return started if join else Group(started, ready)


def start_group_and_wait(
    actor: Any, task: str, count: int, payload: Any, how: str, timeout: float
) -> Group:
    """Start a group of processes, and return when each has said that it is ready."""
    group: Group = start_group(actor, task, count, payload, how, False)
    group_is_ready(actor, group, count, timeout)
    return group


@dataclass(frozen=True)
class Group:
    """What was returned for processes that run, and where they say that they do.

    A child may open the semaphore by its name only later, so it is kept.
    """

    context: Any
    ready: Any


def join_group(
    actor: Any, group: Group, timeout: float | None, grace: float | None
) -> Any:
    """Join a group of processes."""
    join, options = group.context.join, {}
    if grace is not None and "grace_period" in inspect.signature(join).parameters:
        options["grace_period"] = grace
    return _outcome_of(actor, lambda: join(timeout, **options))


def group_pids(actor: Any, group: Group) -> list[int]:
    """Return the process ids of a group."""
    pids = actor.by_implementation(lambda: group.context.pids())
    return [int(pid) for pid in pids]


def group_is_ready(actor: Any, group: Group, count: int, timeout: float) -> bool:
    """Wait until so many processes of a group have said that they are ready."""
    return all(group.ready.acquire(timeout=timeout) for _ in range(count))


def _outcome_of(actor: Any, action: Callable[[], Any]) -> Any:
    """Return what `action` returns; the failure of a process as plain data."""
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
