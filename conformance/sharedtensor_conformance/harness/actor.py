"""An actor: a process that calls the implementation on request of a test.

Owner and peers run the same loop. Calls of the implementation go through
`from_implementation`, which distinguishes its exceptions from faults of the suite.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import signal
import socket
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sharedtensor_conformance.adapter import Layout, fits
from sharedtensor_conformance.harness import (
    actions,
    concurrency,
    confinement,
    exhaustion,
    interruption,
    loading,
    storages,
    tasks,
    wire,
)
from sharedtensor_conformance.harness.channels import Channel, PairChannels
from sharedtensor_conformance.harness.checks import wait_until
from sharedtensor_conformance.harness.setting import Setting
from sharedtensor_conformance.sanitize import printable

PRELOADED = "sharedtensor_conformance.harness.preloaded"
"""The module that imports the implementation in a fork server."""

MODULE = "module"
"""Used in place of a start method for the drop-in module with its default method."""

MAX_CAUSES = 20
"""The maximum number of causes of an exception to follow; they might be cyclic."""

ENVIRONMENT_PATH = re.compile(r"/[^\s'\"]*/(?=(site|dist)-packages/)")
"""The path of an environment up to its installed packages."""

ACTIONS = (actions, concurrency, confinement, interruption, loading, storages)
"""The modules with actions."""


class FromImplementation(Exception):
    """Wraps an exception that the implementation raised."""


class Injected(Exception):
    """An exception that the suite raises in a step of the implementation."""


class Mistake(Exception):
    """An impossible request of the suite, which is a fault of the suite."""


class from_implementation:
    """Mark the exceptions of the block as the implementation's.

    This is not a generator: from Python 3.12 on, a generator that raises another
    exception leaves a cycle of tracebacks, which would keep objects of the
    implementation alive.
    """

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: object, error: BaseException | None, trace: object
    ) -> None:
        if error is not None and not isinstance(error, FromImplementation):
            raise FromImplementation from error


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return an exception as plain data."""
    return {
        "type": type(error).__name__,
        "bases": [kind.__name__ for kind in type(error).__mro__],
        "message": without_paths(_safe_text(lambda: str(error)[:2000])),
        "errnos": _errnos(error),
        "traceback": _safe_text(
            lambda: "".join(traceback.format_exception(error))[-4000:]
        ),
    }


def without_paths(text: str) -> str:
    """Return a text without the paths of this machine.

    Reports are published and compared, and paths differ between machines: those of the
    environment, and of the working directory, which `tempfile` names.
    """
    text = ENVIRONMENT_PATH.sub(".../", text)
    with suppress(OSError):  # the directory has gone
        here = re.escape(os.getcwd().rstrip("/"))
        text = re.sub(rf"(?<![\w.-]){here}(?![\w.-])", ".", text) if here else text
    return text


def _errnos(error: BaseException | None) -> list[int]:
    """Return the error numbers of an exception and of its causes."""
    found: list[int] = []
    for _ in range(MAX_CAUSES):
        if error is None:
            break
        number = getattr(error, "errno", None)
        if isinstance(number, int):
            found.append(number)
        hidden = error.__suppress_context__  # by `from None`
        error = error.__cause__ or (None if hidden else error.__context__)
    return found


def _safe_text(text: Callable[[], str]) -> str:
    """Return a text of the implementation that is safe to print."""
    try:
        said = text()
    except Exception as error:  # its `__str__` is the implementation's too
        said = f"(no text: {type(error).__name__})"
    return printable(said)


class Actor:
    """Executes the controller's requests, one at a time."""

    def __init__(self, name: str, setting: Setting) -> None:
        self.name = name
        self.setting = setting
        self.pid = os.getpid()
        self.forked_from = tasks.register_actor()
        self.objects: dict[str, Any] = {}
        self.object_count = 0
        self.pairs: dict[str, PairChannels] = {}
        self.channels: dict[str, Channel] = {}
        self.children: dict[str, Any] = {}
        self.pools: dict[str, Any] = {}
        self.restorers: dict[str, Callable[[], None]] = {}
        self.interruptions: exhaustion.Interruptions | None = None
        self.operations: Any = None
        self.arguments: Any = None
        self.inherits = False
        self.leaving = False
        self.uncaught: Exception | None = None
        self.programs: list[Any] = []
        self.idle_threads: list[Any] = []
        self.thread_starts = 0

    # Life

    def prepare(self, enter: bool) -> dict[str, Any]:
        """Import the implementation and, if `enter` is true, set its strategy."""
        with from_implementation():
            self.operations = self.setting.operations()
        if enter:
            self.call("enter_child", self.setting.strategy)
        gc.collect()
        gc.freeze()  # what was imported is not searched again after each case
        return {"pid": os.getpid()}

    def preload_fork_servers(self) -> None:
        """Make the fork server of this process import the implementation once."""
        if self.setting.preload:
            multiprocessing.set_forkserver_preload([PRELOADED])

    def serve(self) -> None:
        """Answer requests until the controller closes the connection or sends leave."""
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(self.setting.control)
        self.wire = wire.Wire(sock)
        self.wire.send({"name": self.name})
        try:
            while (request := self.wire.receive())["do"] != "leave":
                self.wire.send(self.answer(request))
                if self.leaving:
                    break
                if self.uncaught:
                    raise self.uncaught
            else:
                self.wire.send({"ok": None})
        except wire.WireClosed:
            os._exit(0)  # the controller has ended, so this process ends
        self.wire.close()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one request."""
        try:
            arguments = [wire.decode(a, self.resolve) for a in request.get("with", [])]
            result = getattr(self, f"do_{request['do']}")(*arguments)
            return {"ok": wire.encode(result, self.refer)}
        except FromImplementation as wrapped:
            return {"raised": describe_error(wrapped.__cause__ or wrapped)}
        except BaseException as error:
            return {"fault": describe_error(error)}

    def by_implementation(self, action: Callable[[], Any]) -> Any:
        """Return the result of `action`; its exceptions are the implementation's."""
        with from_implementation():
            return action()

    def do_act(self, name: str, *arguments: Any) -> Any:
        module = next(one for one in ACTIONS if hasattr(one, name))
        return getattr(module, name)(self, *arguments)

    # References

    def refer(self, value: object) -> dict[str, Any]:
        """Keep `value` here and return its reference."""
        if isinstance(value, Channel):
            self.channels[value.name] = value
            return {"channel": value.name}
        for key, known in self.objects.items():
            if known is value:
                return {"reference": key}
        self.object_count += 1
        key = str(self.object_count)
        self.objects[key] = value
        return {"reference": key}

    def resolve(self, data: dict[str, Any]) -> Any:
        """Return the object of a reference, or the layout that it describes."""
        if "channel" in data:
            return self.channel(data["channel"])
        if "layout" in data:
            given = data["layout"].items()
            fields: dict[str, Any] = {
                key: tuple(value) if type(value) is list else value
                for key, value in given
            }
            return Layout(**fields)
        try:
            return self.objects[data["reference"]]
        except KeyError:
            raise Mistake(f"{self.name} has no object {data!r}") from None

    def channel(self, name: str) -> Channel:
        """Return a channel that this process made, or got as an argument."""
        try:
            return self.channels[name]
        except KeyError:
            raise Mistake(f"{self.name} does not have the channel {name}") from None

    # Requests

    def do_prepare(self, enter: bool) -> dict[str, Any]:
        return self.prepare(enter)

    def do_operate(self, name: str, *arguments: Any) -> Any:
        operation = getattr(self.operations, name, None)
        if operation is None:
            raise Mistake(f"the adapter has no operation {name!r}")
        return self.call(name, *arguments)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call an operation of the adapter.

        Raises:
            FromImplementation: the operation raised an exception.
            Mistake: it does not accept these arguments, a fault of the adapter.
        """
        operation = getattr(self.operations, name)
        try:
            with from_implementation():
                return operation(*arguments)
        except FromImplementation as raised:
            if not isinstance(raised.__cause__, TypeError) or fits(
                operation, arguments
            ):
                raise
            said = f"the adapter's operation {name!r} does not take what the contract "
            raise Mistake(f"{said}says: {raised.__cause__}") from None

    def do_drop(self, *keys: str) -> None:
        for key in keys:
            if key in self.objects:
                self._release(self.objects.pop(key))
        gc.collect()

    def do_drop_all(self) -> None:
        self.channels.clear()
        self.do_drop(*self.objects)

    def _release(self, value: Any) -> None:
        if self.call("is_tensor", value):
            self.call("release", value)

    def do_same(self, one: Any, other: Any) -> bool:
        return one is other

    def do_read_array(self, array: Any, index: int) -> Any:
        return array[index].item()

    def do_write_array(self, array: Any, index: int, value: Any) -> None:
        array[index] = value

    def do_module(self, name: str, *arguments: Any) -> Any:
        with from_implementation():
            return getattr(self.operations.multiprocessing, name)(*arguments)

    def do_module_lacks(self, names: list[str]) -> list[str]:
        module = self.operations.multiprocessing
        return [name for name in names if not hasattr(module, name)]

    def do_context_lacks(self, method: str, names: list[str]) -> list[str]:
        context = self.context(method)
        return [name for name in names if not hasattr(context, name)]

    def do_context_start_method(self, method: str) -> str:
        context = self.context(method)
        with from_implementation():
            return str(context.get_start_method())

    def do_forked_from(self) -> int:
        return self.forked_from

    def do_try_context(self, method: str) -> None:
        self.context(method)

    def context(self, method: str) -> Any:
        """Return the implementation's context for a start method, or its module."""
        module = self.operations.multiprocessing
        if method == MODULE:
            return module
        with from_implementation():
            return module.get_context(method)

    def do_set_umask(self, mask: int) -> int:
        return os.umask(mask)

    def do_ignore_signal(self, number: int) -> None:
        signal.signal(number, signal.SIG_IGN)

    def do_exhaust(self, what: str, spare: int) -> None:
        self.restorers[what] = exhaustion.exhaust(what, spare)

    def do_restore(self, what: str) -> None:
        self.restorers.pop(what)()

    def do_interrupt(self, interval: float, at_most: float | None = None) -> None:
        self.interruptions = exhaustion.Interruptions(interval, at_most)

    def do_stop_interrupting(self) -> int:
        assert self.interruptions is not None, "it was started before"
        return self.interruptions.end()

    def do_break_at(self, step: str) -> None:
        self.call("break_at", step, self.pause)

    def pause(self) -> str:
        """Wait at a step until the controller says how to continue.

        Raises:
            Injected: the controller requested an exception here.
            SystemExit: it requested that this process exits.
        """
        self.wire.send({"at": True})
        how: str = self.wire.receive()["go"]
        if how == "raise":
            raise Injected("this exception was put here by the suite")
        if how == "exit":
            self.leaving = True
            raise SystemExit(0)
        return how

    def do_open_pipe(self) -> list[int]:
        ends = list(os.pipe())
        for end in ends:
            os.set_inheritable(end, True)  # like one from a C library
        return ends

    def do_close_descriptor(self, descriptor: int) -> None:
        os.close(descriptor)

    # Messages

    def do_put(self, to: str, channel: str, payload: Any) -> None:
        message = self.outgoing(payload)
        pair = self.pair_with(to, channel)
        with from_implementation():
            pair.put(self.name, channel, message)

    def do_get(self, sender: str, channel: str) -> Any:
        pair = self.pair_with(sender, channel)
        with from_implementation():
            message = pair.get(self.name, channel)
        return self.incoming(message)

    def do_has_message(self, sender: str, channel: str) -> bool:
        pair = self.pair_with(sender, channel)
        with from_implementation():
            return pair.has_message(self.name, channel)

    def pair_with(self, other: str, channel: str) -> PairChannels:
        """Return the channels between this actor and another, `channel` among them."""
        if channel not in self.setting.channels:
            raise Mistake(f"the channel {channel!r} is not claimed")
        if other not in self.pairs:
            raise Mistake(f"{self.name} has no channels with {other}")
        return self.pairs[other]

    def do_open_channel(self, kind: str, method: str) -> Channel:
        context = self.context(method)
        self.object_count += 1
        with from_implementation():
            return Channel(f"{self.name}-{self.object_count}", context, kind)

    def do_channel_put(self, channel: Channel, payload: Any) -> None:
        message = self.outgoing(payload)
        with from_implementation():
            channel.put(message)

    def do_channel_get(self, channel: Channel) -> Any:
        with from_implementation():
            message = channel.get()
        return self.incoming(message)

    def do_channel_offer(
        self, channel: Channel, payload: Any, how: dict[str, Any] | None = None
    ) -> bool:
        message = self.outgoing(payload)
        with from_implementation():
            return channel.offer(message, how)

    def do_channel_try_get(self, channel: Channel, how: dict[str, Any]) -> list[Any]:
        with from_implementation():
            messages = channel.try_get(how)
        return [self.incoming(message) for message in messages]

    def do_channel_get_within(self, channel: Channel, seconds: float) -> list[Any]:
        with from_implementation():
            messages = channel.get_within(seconds)
        return [self.incoming(message) for message in messages]

    def do_channel(self, channel: Channel, what: str, *arguments: Any) -> Any:
        with from_implementation():
            return getattr(channel, what)(*arguments)

    def do_drop_channel(self, name: str) -> None:
        self.channels.pop(name)
        gc.collect()

    def keep_channel(self, value: object) -> None:
        """Store a channel under its name, if `value` is a channel."""
        if isinstance(value, Channel):
            self.channels[value.name] = value

    def outgoing(self, payload: Any) -> Any:
        """Return the payload with encoded tensors; each tensor is encoded once."""
        return tasks.map_leaves(payload, self.encode)

    def encode(self, value: Any) -> Any:
        """Return the encoded form of `value`."""
        return self.call("encode", value) if self.call("is_tensor", value) else value

    def incoming(self, message: Any) -> Any:
        """Return the message with decoded tensors; each tensor is decoded once."""
        return tasks.map_leaves(message, self.decode)

    def decode(self, value: Any) -> Any:
        """Return the tensor for an encoded form."""
        return self.call("decode", value) if self.call("is_tensor", value) else value

    # Children

    def do_make_pairs(self, pairs: list[list[str]], method: str) -> None:
        """Make the channels between pairs of actors, before either is started."""
        context = self.context(method)
        for one, other in pairs:
            with from_implementation():
                pair = PairChannels(context, one, other, self.setting.channels)
            self.pairs[f"{one}|{other}"] = pair
            if self.name in (one, other):
                self.pairs[other if self.name == one else one] = pair

    def do_make_peer(self, name: str, method: str, payload: Any) -> None:
        """Make the process of a peer, with the channels of all its pairs."""
        context = self.context(method)
        own = {
            key: pair
            for key, pair in self.pairs.items()
            if "|" in key and name in key.split("|")
        }
        # What a forked child inherits is not sent, so it is not encoded either.
        sent = payload if method == "fork" else self.outgoing(payload)
        arguments = (name, self.setting, own, sent, method == "fork")
        with from_implementation():
            process = context.Process(target=peer_main, args=arguments, daemon=False)
        self.children[name] = process

    def do_start_peer(self, name: str, method: str, payload: Any) -> int:
        """Start a peer, which may have been made before; return its pid."""
        if name not in self.children:
            self.do_make_peer(name, method, payload)
        process = self.children[name]
        with from_implementation():
            process.start()
            return int(process.pid)

    def do_close_pairs(self, name: str) -> None:
        """Close this process's copies of the channels of a peer that has ended."""
        for key in [k for k in self.pairs if name in k.split("|")]:
            self.pairs.pop(key).close()
        process = self.children.pop(name, None)
        if process is not None and process.exitcode is not None:
            process.close()

    def do_join(self, name: str, timeout: float) -> int | None:
        # Not `join`: it waits for a pipe that the child's own children may hold open.
        process = self.children[name]
        if wait_until(lambda: process.exitcode is not None, timeout):
            process.join()
        status: int | None = process.exitcode
        return status

    def do_arguments(self) -> Any:
        return self.arguments if self.inherits else self.incoming(self.arguments)

    # Pools

    def do_open_pool(self, name: str, processes: int, method: str, kind: str) -> None:
        context = self.context(method)
        entrance: dict[str, Any] = {}
        if kind != "bare":
            entrance = {
                "initializer": tasks.prepare_worker,
                "initargs": (self.setting,),
            }
        with from_implementation():
            if kind == "executor":
                from sharedtensor_conformance.harness.executor import Executor

                pool: Any = Executor(processes, mp_context=context, **entrance)
            else:
                pool = context.Pool(processes, **entrance)
            self.pools[name] = pool

    def do_run_task(self, name: str, task: str, arguments: list[Any]) -> Any:
        with from_implementation():
            outgoing = [self.outgoing(argument) for argument in arguments]
            result = self.pools[name].apply(getattr(tasks, task), outgoing)
        return self.incoming(result)

    def do_run_task_by_name(self, name: str, task: str, named: dict[str, Any]) -> Any:
        with from_implementation():
            outgoing = {key: self.outgoing(value) for key, value in named.items()}
            result = self.pools[name].apply(getattr(tasks, task), (), outgoing)
        return self.incoming(result)

    def do_run_tasks(self, name: str, method: str, payloads: list[Any]) -> Any:
        arguments = [self.outgoing(payload) for payload in payloads]
        with from_implementation():
            results = tasks.SUBMIT_METHODS[method](
                self.pools[name], tasks.add_and_return, arguments
            )
        return self.incoming(results)

    def do_terminate_pool(self, name: str, payloads: list[Any]) -> None:
        arguments = [self.outgoing(payload) for payload in payloads]
        pool = self.pools[name]
        with from_implementation():
            results = pool.imap_unordered(tasks.add_and_return, arguments)
            next(results)
            pool.terminate()
            pool.join()

    def do_strategy_in_pool(self, name: str) -> str:
        with from_implementation():
            found: str = self.pools[name].apply(tasks.strategy, (self.setting,))
        return found

    def do_close_pool(self, name: str) -> None:
        pool = self.pools.pop(name)
        with from_implementation():
            pool.close()
            pool.join()


def run(actor: Actor, prepare: Callable[[], None] | None = None) -> None:
    """Serve until the controller sends leave; then drop everything and return."""
    if prepare:
        prepare()
    actor.serve()
    actor.pairs.clear()


def peer_main(
    name: str,
    setting: Setting,
    own: dict[str, PairChannels],
    arguments: Any,
    inherits: bool,
) -> None:
    """Run a peer: the target of the processes that the owner starts."""
    forget_parent()
    actor = Actor(name, setting)
    actor.arguments = arguments
    actor.inherits = inherits
    tasks.map_leaves(arguments, actor.keep_channel)
    for key, pair in own.items():
        one, other = key.split("|")
        pair.close_other_ends(name)
        actor.pairs[other if name == one else one] = pair
    global _current_actor
    _current_actor = actor
    run(actor)


_current_actor: Actor | None = None


def forget_parent() -> None:
    """Under fork, drop the objects of the parent's actor.

    If the "child" runs in the parent's own process, the controller will detect that.
    """
    global _current_actor
    if _current_actor is not None and _current_actor.pid != os.getpid():
        _current_actor.wire.close()
        _current_actor.objects.clear()
        _current_actor.pairs.clear()
        _current_actor.channels.clear()
        _current_actor.children.clear()
        _current_actor.pools.clear()
        _current_actor = None


def owner_main() -> None:
    """Run an owner: the main program of a stage."""
    global _current_actor
    setting = Setting.from_environment()
    _current_actor = Actor("owner", setting)
    _current_actor.preload_fork_servers()
    run(_current_actor)
