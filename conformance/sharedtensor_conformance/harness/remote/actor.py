"""An actor: a process that calls the implementation on request of a test.

Owner and peers run the same loop. Calls of the implementation go through
`from_implementation`, which distinguishes its exceptions from faults of the suite.
"""

from __future__ import annotations

import gc
import os
import re
import socket
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from sharedtensor_conformance.adapter import Layout, fits
from sharedtensor_conformance.harness.case.checks import wait_until
from sharedtensor_conformance.harness.remote import wire
from sharedtensor_conformance.harness.remote.channels import Channel, PairChannels
from sharedtensor_conformance.harness.remote.marks import starts_processes
from sharedtensor_conformance.harness.remote.payloads import map_leaves
from sharedtensor_conformance.harness.remote.setting import Setting
from sharedtensor_conformance.sanitize import printable

Result = TypeVar("Result")

MODULE = "module"
"""Used in place of a start method for the drop-in module with its default method."""

MAX_CAUSES = 20
"""The maximum number of causes of an exception to follow; they might be cyclic."""

ENVIRONMENT_PATH = re.compile(r"/[^\s'\"]*/(?=(site|dist)-packages/)")
"""The path of an environment up to its installed packages."""


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
        self.forked_from = 0
        self.objects: dict[str, Any] = {}
        self.object_count = 0
        self.pairs: dict[frozenset[str], PairChannels] = {}
        self.channels: dict[str, Channel] = {}
        self.children: dict[str, Any] = {}
        self.operations: Any = None
        self.arguments: Any = None
        self.inherits = False
        self.leaving = False
        self.uncaught: Exception | None = None

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
            arguments = [wire.decode(a, self.resolve) for a in request["with"]]
            does = self.run if request["do"] == "run" else self.operate
            result = does(*arguments)
            return {"ok": wire.encode(result, self.refer)}
        except FromImplementation as wrapped:
            return {"raised": describe_error(wrapped.__cause__ or wrapped)}
        except BaseException as error:
            return {"fault": describe_error(error)}

    def by_implementation(self, action: Callable[[], Any]) -> Any:
        """Return the result of `action`; its exceptions are the implementation's."""
        with from_implementation():
            return action()

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the suite, whose first parameter is this actor."""
        return function(self, *arguments)

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
        if "key" in data:
            return data["key"]
        if "function" in data:
            return wire.function_at(data["function"])
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

    def operate(self, name: str, *arguments: Any) -> Any:
        """Call an operation of the adapter, as a test asks for it."""
        operation = getattr(self.operations, name, None)
        if operation is None:
            raise Mistake(f"the adapter has no operation {name!r}")
        result = self.call(name, *arguments)
        if name == "array" and result is arguments[0]:
            raise Mistake(
                "the adapter's array() returns the tensor; return a view of it"
            )
        return result

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

    def drop(self, *keys: str) -> None:
        """Release the objects with these keys."""
        for key in keys:
            if key in self.objects:
                self._release(self.objects.pop(key))
        gc.collect()

    def drop_all(self) -> None:
        """Release all objects, and forget the channels that are no pair's."""
        self.channels.clear()
        self.drop(*self.objects)

    def _release(self, value: Any) -> None:
        if self.call("is_tensor", value):
            self.call("release", value)

    def same(self, one: Any, other: Any) -> bool:
        """Return whether both are one object."""
        return one is other

    def call_module(self, name: str, *arguments: Any) -> Any:
        """Call a function of the drop-in module."""
        with from_implementation():
            return getattr(self.operations.multiprocessing, name)(*arguments)

    def context(self, method: str) -> Any:
        """Return the implementation's context for a start method, or its module."""
        module = self.operations.multiprocessing
        if method == MODULE:
            return module
        with from_implementation():
            return module.get_context(method)

    def hold_at(self, step: str) -> None:
        """Pause at a step of the implementation, the next time that it comes there."""
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

    # Messages

    def put(self, to: str, channel: str, payload: Any) -> None:
        """Put a payload on a channel to another actor."""
        self.put_on(self.pair_with(to, channel).of(self.name, channel), payload)

    def get(self, sender: str, channel: str) -> Any:
        """Return the next payload from another actor."""
        return self.get_from(self.pair_with(sender, channel).of(sender, channel))

    def has_message(self, sender: str, channel: str) -> bool:
        """Return whether a message from another actor can be received."""
        own = self.pair_with(sender, channel).of(sender, channel)
        return self.use_channel(own, Channel.has_message)

    def pair_with(self, other: str, channel: str) -> PairChannels:
        """Return the channels between this actor and another, `channel` among them."""
        if channel not in self.setting.channels:
            raise Mistake(f"the channel {channel!r} is not claimed")
        try:
            return self.pairs[frozenset((self.name, other))]
        except KeyError:
            raise Mistake(f"{self.name} has no channels with {other}") from None

    @starts_processes
    def open_channel(self, kind: str, method: str) -> Any:
        """Return a channel that does not belong to a pair."""
        context = self.context(method)
        self.object_count += 1
        with from_implementation():
            return Channel(f"{self.name}-{self.object_count}", context, kind)

    def put_on(self, channel: Any, payload: Any) -> None:
        """Put a payload on such a channel."""
        message = self.outgoing(payload)
        with from_implementation():
            channel.put(message)

    def get_from(self, channel: Any) -> Any:
        """Return the next payload of such a channel."""
        with from_implementation():
            message = channel.get()
        return self.incoming(message)

    def get_within(self, channel: Any, seconds: float) -> list[Any]:
        """Return a list with the next payload, or an empty list after the time."""
        with from_implementation():
            messages = channel.get_within(seconds)
        return [self.incoming(message) for message in messages]

    def use_channel(
        self, channel: Any, method: Callable[..., Result], *arguments: Any
    ) -> Result:
        """Call a method of the class `Channel`, which sends and receives no tensor."""
        with from_implementation():
            return method(channel, *arguments)

    def drop_channel(self, name: str) -> None:
        """Forget a channel."""
        self.channels.pop(name)
        gc.collect()

    def keep_channel(self, value: object) -> None:
        """Store a channel under its name, if `value` is a channel."""
        if isinstance(value, Channel):
            self.channels[value.name] = value

    def outgoing(self, payload: Any) -> Any:
        """Return the payload with encoded tensors; each tensor is encoded once."""
        return map_leaves(payload, self.encoded)

    def encoded(self, value: Any) -> Any:
        """Return the encoded form of `value`."""
        return self.call("encode", value) if self.call("is_tensor", value) else value

    def incoming(self, message: Any) -> Any:
        """Return the message with decoded tensors; each tensor is decoded once."""
        return map_leaves(message, self.decoded)

    def decoded(self, value: Any) -> Any:
        """Return the tensor for an encoded form."""
        return self.call("decode", value) if self.call("is_tensor", value) else value

    # Children

    def make_pairs(self, pairs: list[list[str]], method: str) -> None:
        """Make the channels between pairs of actors, before either is started."""
        context = self.context(method)
        for one, other in pairs:
            with from_implementation():
                pair = PairChannels(context, one, other, self.setting.channels)
            self.pairs[frozenset((one, other))] = pair

    def make_peer(self, name: str, method: str, payload: Any) -> None:
        """Make the process of a peer, with the channels of all its pairs."""
        context = self.context(method)
        own = {names: pair for names, pair in self.pairs.items() if name in names}
        # What a forked child inherits is not sent, so it is not encoded either.
        sent = payload if method == "fork" else self.outgoing(payload)
        arguments = (name, self.setting, own, sent, method == "fork")
        with from_implementation():
            process = context.Process(target=peer_main, args=arguments, daemon=False)
        self.children[name] = process

    @starts_processes
    def start_peer(self, name: str, method: str, payload: Any) -> int:
        """Start a peer, which may have been made before; return its pid."""
        if name not in self.children:
            self.make_peer(name, method, payload)
        process = self.children[name]
        with from_implementation():
            process.start()
            return int(process.pid)

    def close_pairs(self, name: str) -> None:
        """Close this process's copies of the channels of a peer that has ended."""
        for names in [names for names in self.pairs if name in names]:
            self.pairs.pop(names).close()
        process = self.children.pop(name, None)
        if process is not None and process.exitcode is not None:
            process.close()

    def join(self, name: str, timeout: float) -> int | None:
        """Wait for the end of a peer; return its exit status."""
        # Not `join`: it waits for a pipe that the child's own children may hold open.
        process = self.children[name]
        if wait_until(lambda: process.exitcode is not None, timeout):
            process.join()
        status: int | None = process.exitcode
        return status

    def own_arguments(self) -> Any:
        """Return the arguments that this process was started with."""
        return self.arguments if self.inherits else self.incoming(self.arguments)


def run(actor: Actor, prepare: Callable[[], None] | None = None) -> None:
    """Serve until the controller sends leave; then drop everything and return."""
    if prepare:
        prepare()
    actor.serve()
    actor.pairs.clear()


def peer_main(
    name: str,
    setting: Setting,
    own: dict[frozenset[str], PairChannels],
    arguments: Any,
    inherits: bool,
) -> None:
    """Run a peer: the target of the processes that the owner starts."""
    parent = forget_parent()
    actor = Actor(name, setting)
    actor.forked_from = parent
    actor.arguments = arguments
    actor.inherits = inherits
    map_leaves(arguments, actor.keep_channel)
    for pair in own.values():
        pair.close_other_ends(name)
    actor.pairs = own
    global _current_actor
    _current_actor = actor
    run(actor)


_current_actor: Actor | None = None


def is_forked() -> bool:
    """Return whether this process was forked from an actor and is not one itself."""
    return _current_actor is not None and _current_actor.pid != os.getpid()


def forget_parent() -> int:
    """Under fork, drop the objects of the parent's actor; return the parent's pid.

    If the "child" runs in the parent's own process, the controller will detect that.

    Returns:
        The pid of the actor from which this process was forked; 0 if there is none.
    """
    global _current_actor
    parent = _current_actor
    if parent is None or not is_forked():
        return 0
    parent.wire.close()
    for held in (parent.objects, parent.pairs, parent.channels, parent.children):
        held.clear()
    _current_actor = None
    return parent.pid


def owner_main(setting: Setting) -> None:
    """Run an owner: the main program of a stage."""
    global _current_actor
    _current_actor = Actor("owner", setting)
    run(_current_actor)
