"""Actions of an actor other than making and sending single tensors.

An actor executes the action that the controller names. For example, it hides a tensor
where only the garbage collector or the end of the interpreter finds it, ends in one of
the ways in which programs end, starts another program or becomes one, starts a group of
processes, or exchanges messages of many sizes.

The first argument of each action is the actor.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import copy
import gc
import inspect
import os
import pickle
import resource
import signal
import sys
import tempfile
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

from sharedtensor_conformance.harness import bundles, ledger, records, tasks
from sharedtensor_conformance.harness.bundles import Bundle
from sharedtensor_conformance.harness.checks import wait_until

WAITING_PROGRAM = [sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"]
"""The command of another program. It waits until a signal ends it."""

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
"""A program that sets limits of its own, imports the implementation, and prints the
sharing strategy.
"""

THREAD_TIMEOUT = 10.0
"""Seconds to wait for a thread."""


class Unpicklable:
    """An object that raises when it is pickled."""

    def __reduce__(self) -> Any:
        raise ValueError("this object of the suite cannot be pickled")


class OwnError(Exception):
    """An exception of the suite that no implementation knows."""


class Unreceivable:
    """An object that raises one of `UNPICKLING_ERRORS` when it is unpickled."""

    def __init__(self, error: str) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        return _raise_when_unpickled, (self.error,)


UNPICKLING_ERRORS = {
    error.__name__: error for error in (ValueError, OwnError, FileNotFoundError)
}
"""The exceptions of an `Unreceivable`, by name."""


def _raise_when_unpickled(error: str) -> None:
    raise UNPICKLING_ERRORS[error]("this object of the suite cannot be unpickled")


class SendsWhenPickled:
    """An object that sends another message when it is pickled, as one that logs may."""

    def __init__(self, send: Callable[[], None]) -> None:
        self.send = send

    def __reduce__(self) -> Any:
        self.send()
        return str, ("it was sent",)


class PicklesWhenPickled:
    """An object that is pickled as a pickle of a tensor, as a checkpoint may be.

    It arrives as the bytes of this pickle; as no bytes if the tensor cannot be pickled.
    """

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __reduce__(self) -> Any:
        try:
            return bytes, (pickle.dumps(self.tensor),)
        except Exception:
            return bytes, ()


class Uncaught(Exception):
    """An exception of the suite that nothing catches, so that it ends the process."""


class GroupNotReady(Exception):
    """A process of a group did not become ready in time."""


class Padding:
    """An object of a given size that a message contains beside its tensors."""

    def __init__(self, size: int) -> None:
        self.content = bytes_of_size(size)


def bytes_of_size(size: int) -> bytes:
    """Return `size` bytes: the number `size`, repeated, so that other sizes differ."""
    return (b"%d," % size * (size // 2 + 1))[:size]


# Objects that cannot be sent, or that send


def unpicklable(actor: Any) -> Unpicklable:
    """Return an object that raises when it is sent."""
    return Unpicklable()


def unreceivable(actor: Any, error: str) -> Unreceivable:
    """Return an object that raises one of `UNPICKLING_ERRORS` when it is received."""
    return Unreceivable(error)


def sends_when_pickled(
    actor: Any, to: str, channel: str, payload: Any
) -> SendsWhenPickled:
    """Return an object that puts a payload on a channel while it is pickled.

    It may be pickled in another thread, or at the end of the process. So it holds the
    encoded message and the channels.
    """
    message, pair = actor.outgoing(payload), actor.pair_with(to, channel)
    return SendsWhenPickled(lambda: pair.put(actor.name, channel, message))


def makes_when_pickled(actor: Any, values: list[Any]) -> tasks.MakesWhenPickled:
    """Return an object that makes a tensor with these values when it is pickled."""
    return tasks.MakesWhenPickled(actor, values)


def made_when_pickled(actor: Any, maker: tasks.MakesWhenPickled) -> Any:
    """Return the tensor that was made."""
    return maker.tensor


# Copies that no channel makes


def pickles_when_pickled(actor: Any, tensor: Any) -> PicklesWhenPickled:
    """Return an object that pickles a tensor while it is pickled itself."""
    return PicklesWhenPickled(tensor)


def pickled(actor: Any, value: Any) -> bytes:
    """Return the pickle of a value, as a program would write it to a file."""
    content: bytes = actor.by_implementation(lambda: pickle.dumps(value))
    return content


def unpickled(actor: Any, content: bytes) -> Any:
    """Return the value in a pickle."""
    return actor.by_implementation(lambda: pickle.loads(content))


def pickled_to_share(actor: Any, value: Any) -> bytes:
    """Return bytes that a program carries itself, as those of a channel are made."""
    pickling = reduction.ForkingPickler
    return bytes(actor.by_implementation(lambda: pickling.dumps(value)))


def deep_copy(actor: Any, value: Any) -> Any:
    """Return a deep copy of a value."""
    return actor.by_implementation(lambda: copy.deepcopy(value))


def shallow_copy(actor: Any, value: Any) -> Any:
    """Return a shallow copy of a value."""
    return actor.by_implementation(lambda: copy.copy(value))


# Objects with tensors in their attributes


def make_record(actor: Any, kind: str, first: Any, second: Any) -> Any:
    """Return a record of one of the kinds of `records.RECORDS`."""
    return records.RECORDS[kind](first, second)


def describe_record(actor: Any, record: Any) -> list[Any]:
    """Return the kind of a record and its two attributes."""
    return [records.kind_of(record), record.first, record.second]


# Containers that the controller cannot have


CONTAINERS = [
    set(),
    {1, 2.5, "three", b"four", None, (5, frozenset({6}))},
    frozenset({"seven", 8}),
    collections.deque([9, {10}, "eleven"]),
    {"twelve": {13}, frozenset({14}): [{15}, ({16},)]},
]
"""Containers of plain values, with others than lists, tuples and dictionaries."""


def put_containers(actor: Any, to: str, channel: str, tensor: Any) -> None:
    """Put each of the `CONTAINERS`, and then all of them with a tensor."""
    for container in CONTAINERS:
        actor.do_put(to, channel, container)
    actor.do_put(to, channel, [*CONTAINERS, tensor])


def get_containers(actor: Any, sender: str, channel: str) -> tuple[list[str], Any]:
    """Get what `put_containers` puts.

    Returns:
        The containers that arrive otherwise, as texts, and the tensor.
    """
    alone = [actor.do_get(sender, channel) for _ in CONTAINERS]
    *together, tensor = actor.do_get(sender, channel)
    sent = [*CONTAINERS, *CONTAINERS]
    pairs = zip([*alone, *together], sent, strict=True)
    wrong = [
        f"{found!r} and not {due!r}"
        for found, due in pairs
        if type(found) is not type(due) or found != due
    ]
    return wrong, tensor


# Messages of every size


def padding(actor: Any, size: int) -> Padding:
    """Return an object of `size` bytes."""
    return Padding(size)


def is_padding(actor: Any, value: Any, size: int) -> bool:
    """Return whether this is what `padding` returned in another process."""
    return isinstance(value, Padding) and value.content == bytes_of_size(size)


def make_long(actor: Any, length: int, value: int) -> Any:
    """Return a new tensor of `length` elements, all with the same value."""
    return actor.call("make", [value] * length, (length,), "float32")


def make_many(actor: Any, count: int, first: int) -> list[Any]:
    """Return `count` tensors with one element each: `first`, `first` + 1 and so on."""
    numbers = range(first, first + count)
    return [actor.call("make", [number], (1,), "float32") for number in numbers]


def positions_with_wrong_first_value(
    actor: Any, tensors: list[Any], first: int
) -> list[int]:
    """Return the positions of the tensors that do not begin with `first` + position."""
    found = [actor.call("read", tensor, (0,)) for tensor in tensors]
    return [n for n, value in enumerate(found) if value != first + n]


def first_values(actor: Any, tensor: Any, count: int) -> list[Any]:
    """Return the first `count` elements of a tensor."""
    return [actor.call("read", tensor, (index,)) for index in range(count)]


def make_many_long(
    actor: Any, count: int, length: int, dtype: str = "float32"
) -> list[Any]:
    """Return `count` tensors of `length` elements.

    The first elements are 1, 2 and so on, and all other elements are 0.
    """
    tail = [0] * (length - 1)
    made = range(1, count + 1)
    return [actor.call("make", [n, *tail], (length,), dtype) for n in made]


class PutAside:
    """Tensors that a process can drop although they are among its arguments.

    A forked child cannot drop its arguments themselves: what called it refers to them.
    """

    def __init__(self, tensors: list[Any]) -> None:
        self.tensors = tensors


def put_aside(actor: Any, tensors: list[Any]) -> PutAside:
    """Return an object that has these tensors, to be inherited by a forked child."""
    return PutAside(tensors)


def take_back(actor: Any, aside: PutAside) -> list[Any]:
    """Return these tensors, which the object has no more in this process."""
    tensors, aside.tensors = aside.tensors, []
    return tensors


def share_each(actor: Any, tensors: list[Any]) -> None:
    """Share each tensor by a separate call."""
    for tensor in tensors:
        actor.call("share", tensor)


def mapped_sizes(actor: Any) -> dict[str, int]:
    """Return how many bytes of each file of shared memory this process maps."""
    return ledger.mapped_sizes(os.getpid())


def file_of(actor: Any, tensor: Any) -> str:
    """Return the file in whose mapping a tensor begins; "" for none."""
    return ledger.file_at(os.getpid(), actor.call("address", tensor))


def drop_all_but(actor: Any, kept: list[Any]) -> None:
    """Drop all objects that this process keeps for the suite, except some tensors."""
    held = actor.objects.items()
    actor.do_drop(*(key for key, value in held if all(value is not k for k in kept)))


def positions_with_wrong_values(
    actor: Any, tensors: list[Any], first: int
) -> list[int]:
    """Return the positions of tensors with other values than `make_many` gave them."""
    found = [actor.call("values", tensor) for tensor in tensors]
    due = [[first + place] for place in range(len(tensors))]
    return [place for place, value in enumerate(found) if value != due[place]]


def put_bytes_of_sizes(
    actor: Any, channel: Any, sizes: list[int], form: str, back: bool = False
) -> None:
    """Send bytes of each size on a pipe, in one of the forms of `channels.FORMS`.

    `back` means from the reading end of a duplex pipe to its other end.
    """
    for size in sizes:
        actor.by_implementation(
            lambda size=size: channel.put_bytes_as(form, bytes_of_size(size), back)
        )


def get_bytes_of_sizes(
    actor: Any, channel: Any, sizes: list[int], back: bool = False
) -> list[int]:
    """Receive bytes of each size; return the sizes of those that differ.

    The receiver alternates between four maximum lengths: none, the size itself, and two
    larger ones.
    """
    wrong, end = [], channel.writer if back else channel.reader
    for number, size in enumerate(sizes):
        bounds = ((), (size,), (size + 1,), (2 * size + 300,))[number % 4]
        received: bytes = actor.by_implementation(
            lambda bounds=bounds: end.recv_bytes(*bounds)
        )
        if received != bytes_of_size(size):
            wrong.append(size)
    return wrong


def put_messages_of_sizes(
    actor: Any, channel: Any, tensor: Any, sizes: list[int]
) -> None:
    """Put a message for each size: a tensor or None, and that many bytes."""
    for size in sizes:
        actor.do_channel_put(channel, [tensor, bytes_of_size(size)])


def get_messages_of_sizes(
    actor: Any, channel: Any, values: list[Any] | None, sizes: list[int]
) -> list[int]:
    """Get the messages of `put_messages_of_sizes`.

    Args:
        actor: the actor.
        channel: the channel.
        values: the values of the tensor in each message; None if there is no tensor.
        sizes: the sizes.

    Returns:
        The sizes of the messages that differ.
    """
    wrong = []
    for size in sizes:
        message = actor.do_channel_get(channel)
        is_whole = isinstance(message, list) and message[1:] == [bytes_of_size(size)]
        if not is_whole or _values_or_none(actor, message[0]) != values:
            wrong.append(size)
        del message
    return wrong


def _values_or_none(actor: Any, tensor: Any) -> Any:
    return None if tensor is None else actor.call("values", tensor)


def put_size_range(actor: Any, channel: Any, below: int, step: int) -> None:
    """Put a message without a tensor for each size in ``range(0, below, step)``."""
    put_messages_of_sizes(actor, channel, None, list(range(0, below, step)))


def get_size_range(actor: Any, channel: Any, below: int, step: int) -> list[int]:
    """Get the messages of `put_size_range`; return the sizes of those that differ."""
    return get_messages_of_sizes(actor, channel, None, list(range(0, below, step)))


def put_bytes_of_size_range(actor: Any, channel: Any, below: int, step: int) -> None:
    """Send bytes of each size in ``range(0, below, step)`` on a pipe."""
    put_bytes_of_sizes(actor, channel, list(range(0, below, step)), "bytes")


def get_bytes_of_size_range(
    actor: Any, channel: Any, below: int, step: int
) -> list[int]:
    """Receive the bytes of `put_bytes_of_size_range`; return the sizes that differ."""
    return get_bytes_of_sizes(actor, channel, list(range(0, below, step)))


def put_numbered_messages(
    actor: Any, channel: Any, first: int, count: int, size: int
) -> None:
    """Put `count` messages of `size` bytes, without tensors, numbered from `first`."""
    for number in range(first, first + count):
        message = {"number": number, "tensors": [], "padding": Padding(size)}
        actor.do_channel_put(channel, message)


def finish_tasks(actor: Any, channel: Any, count: int) -> None:
    """Say of `count` messages of a joinable queue that they are done."""
    for _ in range(count):
        actor.by_implementation(channel.task_done)


def send_from_reading_end(actor: Any, channel: Any, count: int) -> None:
    """Send `count` messages from the reading end of a duplex pipe to its other end."""
    for number in range(count):
        actor.by_implementation(lambda number=number: channel.reader.send(number))


def get_numbered_messages(
    actor: Any, channel: Any, first: int, count: int, size: int, seconds: float
) -> list[int]:
    """Get the messages of `put_numbered_messages`, each within `seconds`.

    The first wrong or missing message ends this, because the numbers of later ones are
    no longer known to match.

    Returns:
        The numbers from the first wrong or missing message on; empty if there is none.
    """
    for number in range(first, first + count):
        found = actor.do_channel_get_within(channel, seconds)
        if not found or not _is_numbered_message(actor, found[0], number, size):
            return list(range(number, first + count))
    return []


def _is_numbered_message(actor: Any, message: Any, number: int, size: int) -> bool:
    is_next: bool = message["number"] == number
    return is_next and is_padding(actor, message["padding"], size)


# Threads


def start_idle_thread(actor: Any) -> None:
    """Start a thread that waits until `stop_idle_threads` is called."""
    until = threading.Event()
    thread = threading.Thread(target=until.wait, daemon=True)
    thread.start()
    actor.idle_threads.append((thread, until))


def stop_idle_threads(actor: Any) -> None:
    """End the threads that `start_idle_thread` started in this process."""
    while actor.idle_threads:
        thread, until = actor.idle_threads.pop()
        until.set()
        thread.join(THREAD_TIMEOUT)


def count_thread_starts(actor: Any) -> None:
    """Count the threads of Python that start in this process from now on.

    A hook in each new thread counts it, since no audit event tells of their starts. A
    thread of C that starts and ends is not seen.
    """
    actor.thread_starts = 0

    def count(*event: object) -> None:
        sys.setprofile(None)  # of the new thread
        actor.thread_starts += 1

    threading.setprofile(count)


def thread_starts(actor: Any) -> int:
    """Return the number of threads that have started since they are counted."""
    started: int = actor.thread_starts
    return started


# Descriptors


def occupy_descriptors(actor: Any, below: int) -> str:
    """Open all descriptors below a number, so that the next one is not below it.

    The soft limit of descriptors is raised if necessary; `release_descriptors` restores
    it. Return why that is impossible here, or nothing.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * below:
        return f"a process may have {hard} open files, and this needs {2 * below}"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * below), hard))
    taken = actor.occupied = []
    while not taken or taken[-1] < below:
        taken.append(os.open(os.devnull, os.O_RDONLY))
    os.close(taken.pop())
    actor.soft_limit = soft
    return ""


def replace_descriptors(actor: Any, values: list[int]) -> dict[str, Any]:
    """Send a tensor, and open files in the place of what that has opened.

    Then send the tensor again, and another one, and drop all.

    Returns:
        ``values`` of the tensor afterwards, ``wrong`` values that arrived, and the
        numbers of files that are ``broken``: closed, replaced or written to.
    """
    ends = actor.operations.multiprocessing.Pipe()
    before = _descriptors()
    made = [actor.call("make", values, (len(values),), "int32")]
    made.append(_through(actor, ends, made[0]))
    opened = _descriptors() - before
    for number in opened:
        os.close(number)
    content = _files_in_place_of(opened)
    wrong = []
    for sent in (actor.call("make", values, (len(values),), "int32"), made[0]):
        with contextlib.suppress(Exception):
            made.append(_through(actor, ends, sent))
            wrong += [
                found for found in [actor.call("values", made[-1])] if found != values
            ]
    found = actor.call("values", made[0])
    made.clear()
    del sent
    gc.collect()
    broken = [each for each, text in content.items() if _content(each) != text]
    for number in content.keys() - broken:
        os.close(number)
    return {"values": found, "wrong": wrong, "broken": broken}


def _files_in_place_of(numbers: set[int]) -> dict[int, bytes]:
    """Open files until they have all these numbers; return their contents."""
    content: dict[int, bytes] = {}
    while numbers - content.keys():
        number, path = tempfile.mkstemp()
        os.unlink(path)
        content[number] = b"%d" % number
        os.write(number, content[number])
    return content


def _descriptors() -> set[int]:
    numbers = map(int, os.listdir("/proc/self/fd"))
    return {each for each in numbers if os.path.exists(f"/proc/self/fd/{each}")}


def _through(actor: Any, ends: Any, tensor: Any) -> Any:
    """Return the tensor that arrives at the other end of a pipe."""
    encode, decode = actor.operations.encode, actor.operations.decode
    actor.by_implementation(lambda: ends[0].send(encode(tensor)))
    return actor.by_implementation(lambda: decode(ends[1].recv()))


def _content(number: int) -> bytes | None:
    """Return the content of a file; or None if that number is not open."""
    try:
        return os.pread(number, 100, 0)
    except OSError:
        return None


def release_descriptors(actor: Any) -> None:
    """Close the descriptors that `occupy_descriptors` opened, and restore the limit."""
    while actor.occupied:
        os.close(actor.occupied.pop())
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (actor.soft_limit, hard))


# Bundles: `with_grads` is false if the implementation has no grads


def make_bundle(actor: Any, plan: list[dict[str, Any]], plain: Any) -> Bundle:
    """Return a bundle with the tensors of a plan: see `bundles.make`."""
    return bundles.make(actor.call, plan, plain)


def describe_bundle(actor: Any, bundle: Bundle, with_grads: bool) -> dict[str, Any]:
    """Return a description of a bundle: see `bundles.describe`."""
    return bundles.describe(actor.call, bundle, with_grads)


def strides_of_bundle(actor: Any, bundle: Bundle) -> list[list[int]]:
    """Return the strides of the tensors in a bundle that are not contiguous."""
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
    """Get a bundle, describe it, write to it, and describe it again."""
    bundle = actor.do_get(sender, channel)
    found = [describe_bundle(actor, bundle, with_grads)]
    write_bundle(actor, bundle, with_grads)
    return [*found, describe_bundle(actor, bundle, with_grads)]


# Hiding places


def hide(actor: Any, key: str, where: str) -> None:
    """Move a tensor to one of the `HIDING_PLACES`, and drop the suite's reference."""
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
"""The places where a tensor can be when a process ends. In the first, it is garbage."""


# Ends and other programs


def end(actor: Any, how: str) -> None:
    """End this process ``by os._exit``, ``by an exception`` or ``by SIGTERM``.

    The exception is raised after this action has been answered.
    """
    if how == "by os._exit":
        os._exit(0)
    if how == "by SIGTERM":
        os.kill(os.getpid(), signal.SIGTERM)
    actor.uncaught = Uncaught("this exception of the suite ends the process")


def execute_program(actor: Any) -> None:
    """Replace this process by another program."""
    os.execv(WAITING_PROGRAM[0], WAITING_PROGRAM)


def start_program(actor: Any) -> int:
    """Start another program, which gets all inheritable descriptors; return its pid."""
    import subprocess  # here, since every actor imports this module

    process = subprocess.Popen(WAITING_PROGRAM, close_fds=False)
    actor.programs.append(process)
    return process.pid


def strategy_of_a_program(
    actor: Any, limits: dict[str, int], variables: dict[str, str]
) -> str:
    """Return the default sharing strategy of a new program.

    The program sets the limits, imports the implementation, and sets no strategy.

    Args:
        actor: the process that starts the program.
        limits: the soft limits of the program, by their names in `resource`.
        variables: additional variables of its environment.

    Returns:
        The strategy; if the program fails, ``none:`` and the end of its error output.
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
    """Change the set of strategies that the module returned, and look at the effects.

    The set is emptied, and `added` becomes its only element. It may be the set that the
    module itself uses, so it is restored at the end.

    Returns:
        The strategies that the module returns after the change, and those of all names
        that can be set.
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
    """End the programs that this process started."""
    while actor.programs:
        process = actor.programs.pop()
        process.kill()
        process.wait()


# The environment of the processes that an actor starts


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
    """Start `count` processes that execute a task of `tasks.GROUP_TASKS`.

    Args:
        actor: the actor.
        task: the name of the task.
        count: the number of processes.
        payload: the tensors for the task.
        how: ``spawn()``, or the start method for ``start_processes()``.
        join: whether the call waits until the processes have ended.

    Returns:
        The outcome of the call if it waits, otherwise a `Group`.
    """
    module = actor.operations.multiprocessing
    context = actor.context("spawn" if how == "spawn()" else how)
    ready = actor.by_implementation(lambda: context.Semaphore(0))
    arguments = (actor.setting, task, ready, *actor.outgoing(payload))
    options: dict[str, Any] = {"nprocs": count, "join": join}
    start = module.spawn
    if how != "spawn()":
        start, options["start_method"] = module.start_processes, how
    started = _result_or_failure(
        actor, lambda: start(tasks.run_in_group, arguments, **options)
    )
    return started if join else Group(started, ready)


def start_group_and_wait(
    actor: Any, task: str, count: int, payload: Any, how: str, timeout: float
) -> Group:
    """Start a group of processes, and return it when all of its processes are ready.

    `timeout` is the limit in seconds for each process. If it is exceeded,
    `GroupNotReady` is raised as an exception of the implementation.
    """
    group: Group = start_group(actor, task, count, payload, how, False)
    if group_is_ready(actor, group, count, timeout):
        return group

    def fail() -> Group:
        raise GroupNotReady(
            f"a process of a group of {count} was not ready within {timeout:g} s"
        )

    failed: Group = actor.by_implementation(fail)
    return failed


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


def join_group(
    actor: Any, group: Group, timeout: float | None, grace: float | None
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


def group_pids(actor: Any, group: Group) -> list[int]:
    """Return the process ids of a group."""
    pids = actor.by_implementation(lambda: group.context.pids())
    return [int(pid) for pid in pids]


def group_is_ready(actor: Any, group: Group, count: int, timeout: float) -> bool:
    """Wait until `count` processes of a group are ready; return whether they are.

    `timeout` is the limit in seconds for each process.
    """
    return all(group.ready.acquire(timeout=timeout) for _ in range(count))


def _result_or_failure(actor: Any, action: Callable[[], Any]) -> Any:
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
