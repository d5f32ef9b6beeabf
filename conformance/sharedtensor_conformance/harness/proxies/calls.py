"""Remote calls: a request to the process of an actor, and its answer.

Requests and answers contain references to objects: a `Remote` is an object of one
process, and a `ChannelProxy` is a channel that several processes can have.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from sharedtensor_conformance.adapter import PROFILES, Layout, operations_of
from sharedtensor_conformance.harness import wire
from sharedtensor_conformance.harness.checks import tally, wait_until
from sharedtensor_conformance.harness.listening import listener
from sharedtensor_conformance.harness.outcomes import (
    ActorDied,
    DeadlineExceeded,
    HarnessFault,
    RemoteError,
    RemoteRaised,
)
from sharedtensor_conformance.harness.process import Process
from sharedtensor_conformance.harness.process_tree import prolonged, status
from sharedtensor_conformance.harness.proxies.host import Host

OPERATIONS = frozenset(name for profile in PROFILES for name in operations_of(profile))

DTYPES_MADE: dict[str, Callable[..., list[str]]] = {
    "make": lambda values, shape, dtype: [dtype],
    "reinterpret": lambda tensor, dtype: [dtype],
    "make_on_device": lambda values, dtype: [dtype],
    "make_on": lambda index, values, dtype: [dtype],
    "carve": lambda parts: [dtype for _, dtype in parts],
}
"""What returns the dtypes that an operation is asked to make, of its arguments."""


STARTING = frozenset(
    {
        *("start_peer", "open_channel", "open_pool", "close_pool", "terminate_pool"),
        *("run_task", "run_task_by_name", "run_tasks", "strategy_in_pool"),
        *("start_group", "start_group_and_wait", "join_group", "group_pids"),
        *("start_in_parallel", "start_in_vain", "start_and_write"),
        *("start_with_named_arguments", "strategy_of_a_child", "strategy_of_a_program"),
    }
)
"""The requests and actions in which processes start, or others wait for their start.

A process, or the server that forks it, may import the implementation first. So their
answers may take as long as a start, and not only as long as an operation.
"""

NAME_PLACES = {"operate": 0, "act": 0, "channel": 1}
"""Where the arguments of a request have the name of what it asks for."""


def index_tuple(index: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return the index of an element as the adapter wants it."""
    return index if isinstance(index, tuple) else (index,)


class Requester:
    """Asks the process of an actor for something, and takes its answer."""

    def __init__(self, host: Host, name: str) -> None:
        self.host = host
        self.name = name
        self.process = Process(name)

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    @property
    def deadline(self) -> float:
        """Seconds that a call in the process may take."""
        return self.host.timeouts.answer

    def deadline_of(self, what: str, *arguments: Any) -> float:
        """Return the seconds that a request may take: see `STARTING`."""
        words = {what, *(word for word in arguments if isinstance(word, str))}
        return self.host.timeouts.start if words & STARTING else self.deadline

    def is_alive(self) -> bool:
        """Return whether the process runs."""
        return self.process.is_alive()

    def ensure_started(self) -> None:
        """Start the process if it has not been started.

        Raises:
            NotRun: the configuration cannot run here.
            ActorDied, DeadlineExceeded, RemoteRaised: it could not be started.
        """
        self.host.starter.ensure(self.process)

    def request(self, what: str, *arguments: Any, deadline: float = 0.0) -> Any:
        """Ask the process for something and return its answer.

        Raises:
            RemoteRaised: the implementation raised.
            ActorDied: the process ended.
            DeadlineExceeded: it gave no answer in time.
            HarnessFault: the suite or the adapter is at fault.
        """
        self.ensure_started()
        tally.remote_calls += 1
        return self.exchange(what, *arguments, deadline=deadline)

    def operate(self, name: str, *arguments: Any) -> Any:
        """Call an operation of the adapter in the process.

        Raises:
            HarnessFault: the test names a dtype that is not claimed. Its decorator has
                to say that it needs it, since what an adapter does not claim is no
                fault of the implementation.
        """
        made = DTYPES_MADE[name](*arguments) if name in DTYPES_MADE else ()
        if unclaimed := sorted(set(made) - set(self.host.dtypes)):
            raise HarnessFault(
                f"the test makes {unclaimed[0]}, which the adapter does not claim, "
                f"and its decorator does not say that it needs it"
            )
        return self.request("operate", name, *arguments)

    def exchange(self, what: str, *arguments: Any, deadline: float = 0.0) -> Any:
        """Ask, without starting the process first."""
        place = NAME_PLACES.get(what)
        request_name = what if place is None else f"{what} {arguments[place]}"
        self.ask(what, *arguments)
        limit = deadline or self.deadline_of(what, *arguments)
        return self.result(self.receive(request_name, limit), request_name)

    def ask(self, what: str, *arguments: Any) -> None:
        """Ask for something; `receive` waits for what comes of it."""
        message = {"do": what, "with": [wire.encode(a, self._refer) for a in arguments]}
        listener().asked(self, message)
        connection = self.process.wire
        if connection is None:
            raise HarnessFault(f"{self.name} has ended already")
        try:
            connection.send(message)
        except wire.WireClosed:
            ended = self.host.ends.describe_end(self.process, what)
            raise ActorDied(ended) from None
        except wire.WireTimeout:
            raise DeadlineExceeded(f"{self.name} did not read: {what}") from None

    def receive(self, request_name: str, limit: float = 0.0) -> dict[str, Any]:
        """Return the next message of the process, which may take `limit` seconds."""
        connection = self.process.wire
        assert connection is not None, "it was asked"
        limit = limit or self.deadline
        given = prolonged(limit)
        try:
            message: dict[str, Any] = connection.receive(
                wire.after(given), process_fd=self.process.pidfd
            )
            return message
        except wire.WireClosed:
            ended = self.host.ends.describe_end(self.process, request_name)
            raise ActorDied(ended) from None
        except wire.WireTimeout:
            raise self.host.ends.no_answer_error(
                self.process, request_name, limit, given
            ) from None

    def result(self, message: dict[str, Any], request_name: str) -> Any:
        """Return what a message brings; the same is raised as by `request`."""
        if "ok" in message:
            value = wire.decode(message["ok"], self._resolve)
            listener().answered(self, message, value)
            return value
        listener().answered(self, message, None)
        if "raised" in message:
            raise RemoteRaised(
                RemoteError(self.name, **message["raised"]), request_name
            )
        fault = RemoteError(self.name, **message["fault"])
        raise HarnessFault(
            f"{fault} (while it was asked to {request_name})\n{fault.traceback}"
        )

    def _refer(self, value: Any) -> dict[str, Any]:
        match value:
            case Layout():
                return {"layout": asdict(value)}
            case ChannelProxy():
                return {"channel": value.name}
            case Remote() if value.actor is self:
                return {"reference": value.key}
            case Remote():
                whose = value.actor.name
                raise HarnessFault(f"{whose}'s object was given to {self.name}")
        raise HarnessFault(f"a {type(value).__name__} cannot be sent to an actor")

    def _resolve(self, data: dict[str, Any]) -> Remote | ChannelProxy:
        if "channel" in data:
            return ChannelProxy(data["channel"])
        return Remote(self, data["reference"])


class HeldRequest:
    """A request whose process may be held at a step of it, until it is told to go on.

    Args:
        actor: who is asked.
        request_name: what evidence calls the request.
        what: the request.
        arguments: those of the request.
    """

    def __init__(
        self, actor: Requester, request_name: str, what: str, arguments: tuple[Any, ...]
    ) -> None:
        self.actor = actor
        self.request_name = request_name
        actor.ask(what, *arguments)
        self.first = actor.receive(request_name)

    @property
    def is_held(self) -> bool:
        """Whether the process came to the step and waits there."""
        return "at" in self.first

    def go(self, how: str) -> None:
        """Let the process go on: ``""`` means as if nothing was."""
        connection = self.actor.process.wire
        assert connection is not None, "it waits"
        with suppress(wire.WireClosed):  # it was killed there: `finish` says so
            connection.send({"go": how})

    def finish(self) -> Any:
        """Return the answer; the same is raised as by `Requester.request`."""
        tally.remote_calls += 1
        last = self.actor.receive(self.request_name) if self.is_held else self.first
        return self.actor.result(last, self.request_name)


class Pending:
    """A request that an actor waits in: for a message."""

    def __init__(self, actor: Requester, what: str, *arguments: Any) -> None:
        actor.ensure_started()
        self.actor = actor
        self.limit = actor.deadline_of(what, *arguments)
        self.payload: Any = None
        wait_until(self._sleeps, actor.deadline)  # until it waits for a request
        self.before = self.times_woken()
        actor.ask(what, *arguments)

    def is_waiting(self) -> bool:
        """Return whether the process waits in what it was asked for."""
        return self._sleeps() and self.times_woken() > self.before

    def has_answered(self) -> bool:
        """Return whether the answer is there, or the process has ended."""
        connection = self.actor.process.wire
        if connection is None:
            return True
        poller = select.poll()
        poller.register(connection.socket, select.POLLIN)
        poller.register(self.actor.process.pidfd, select.POLLIN)
        return bool(poller.poll(0))

    def answer(self) -> Any:
        """Return what the process answers, which is the `payload` from then on."""
        tally.remote_calls += 1
        message = self.actor.receive("get", self.limit)
        self.payload = self.actor.result(message, "get")
        return self.payload

    def times_woken(self) -> int:
        """Return how often the waiting process has given up the processor so far."""
        return int(status(self.actor.pid)["voluntary_ctxt_switches"])

    def _sleeps(self) -> bool:
        return status(self.actor.pid)["State"].startswith("S")


class Remote:
    """An object of the implementation, in the process of an actor.

    Every operation of the adapter is a method: ``tensor.write(1, 5)``.
    """

    def __init__(self, actor: Requester, key: str) -> None:
        self.actor = actor
        self.key = key

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in OPERATIONS:
            raise AttributeError(f"the adapter contract has no operation {name!r}")
        return lambda *arguments: self.actor.operate(name, self, *arguments)

    def read(self, index: int | tuple[int, ...]) -> Any:
        """Return the value of one element."""
        return self.actor.operate("read", self, index_tuple(index))

    def write(self, index: int | tuple[int, ...], value: Any) -> None:
        """Write one element in place."""
        self.actor.operate("write", self, index_tuple(index), value)

    def write_later(self, index: int, value: Any) -> None:
        """Enqueue a write on the device."""
        self.actor.operate("write_later", self, index, value)

    def read_array(self, index: int) -> Any:
        """Return one element, where this is an array of the profile ``arrays``."""
        return self.actor.request("read_array", self, index)

    def write_array(self, index: int, value: Any) -> None:
        """Write one element, where this is an array of the profile ``arrays``."""
        self.actor.request("write_array", self, index, value)

    def same_object_as(self, other: Remote) -> bool:
        """Return whether both are one Python object in their process."""
        return bool(self.actor.request("same", self, other))

    def is_same_reference_as(self, other: Remote) -> bool:
        """Return whether both name one object, without asking its process."""
        return (self.actor, self.key) == (other.actor, other.key)

    def drop(self) -> None:
        """Release it in its process."""
        self.actor.request("drop", self.key)

    def hide(self, where: str) -> None:
        """Put it where the suite no longer finds it: see `actions.HIDING_PLACES`."""
        self.actor.request("act", "hide", self.key, where)

    def drop_in_a_thread(self) -> None:
        """Let another thread of its process have the last reference, and drop that."""
        self.actor.request("act", "drop_in_a_thread", self.key)


class ChannelProxy:
    """A channel that belongs to no pair of actors.

    Who made it has it, and so do the processes that got it among their arguments.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def put(self, actor: Requester, payload: Any) -> None:
        """Make an actor put a payload."""
        actor.request("channel_put", self, payload)

    def get(self, actor: Requester) -> Any:
        """Return the next payload, as an actor gets it."""
        return actor.request("channel_get", self)

    def waiting(self, actor: Requester) -> Pending:
        """Make an actor wait for a payload."""
        return Pending(actor, "channel_get", self)

    def waiting_to_put(self, actor: Requester, payload: Any) -> Pending:
        """Make an actor wait for room for a payload."""
        return Pending(actor, "channel_put", self, payload)

    def offer(self, actor: Requester, payload: Any, how: Any = None) -> bool:
        """Make an actor put a payload on a queue if it has room, and say if it had."""
        return bool(actor.request("channel_offer", self, payload, how))

    def try_get(self, actor: Requester, how: dict[str, Any]) -> list[Any]:
        """Return what an actor gets from a queue that it asks so, in a list."""
        found: list[Any] = actor.request("channel_try_get", self, how)
        return found

    def get_within(self, actor: Requester, seconds: float) -> list[Any]:
        """Return what an actor gets in time: a payload in a list, or nothing."""
        found: list[Any] = actor.request(
            "channel_get_within", self, seconds, deadline=seconds + actor.deadline
        )
        return found

    def waiting_within(self, actor: Requester, seconds: float) -> Pending:
        """Make an actor wait so long for a payload: a list, empty if none came."""
        return Pending(actor, "channel_get_within", self, seconds)

    def has_message(self, actor: Requester) -> bool:
        """Return whether a message is there for an actor, or a part of one."""
        return bool(actor.request("channel", self, "has_message"))

    def close_writer(self, actor: Requester) -> None:
        """Make an actor close its writing end, where this is a pipe."""
        actor.request("channel", self, "close_writer")

    def close_reader(self, actor: Requester) -> None:
        """Make an actor close its other end, where this is a pipe."""
        actor.request("channel", self, "close_reader")

    def flush(self, actor: Requester) -> None:
        """Make an actor close a queue when all that it has put was written."""
        actor.request("channel", self, "flush")

    def cancel_join_thread(self, actor: Requester) -> None:
        """Make an actor end though nobody receives what it has put."""
        actor.request("channel", self, "cancel_join_thread")

    def joining(self, actor: Requester) -> Pending:
        """Make an actor wait until all messages have been dealt with."""
        return Pending(actor, "channel", self, "join")

    def put_bytes(self, actor: Requester, text: str) -> None:
        """Make an actor send a text as bare bytes, where this is a pipe."""
        actor.request("channel", self, "put_bytes", text)

    def waiting_for_bytes(self, actor: Requester) -> Pending:
        """Make an actor wait for bare bytes, where this is a pipe."""
        return Pending(actor, "channel", self, "get_bytes")

    def get_bytes(self, actor: Requester) -> str:
        """Return the text that an actor gets as bare bytes, where this is a pipe."""
        return str(actor.request("channel", self, "get_bytes"))

    def seconds_until_empty(
        self, actor: Requester, how: dict[str, Any]
    ) -> float | None:
        """Return after how long an actor is told that a queue is empty; None: never."""
        told = actor.request("channel", self, "seconds_until_empty", how)
        return None if told is None else float(told)

    def waiting_until_empty(self, actor: Requester, how: dict[str, Any]) -> Pending:
        """Make an actor wait so: the answer is that of `seconds_until_empty`."""
        return Pending(actor, "channel", self, "seconds_until_empty", how)

    def seconds_until_full(self, actor: Requester, how: dict[str, Any]) -> float | None:
        """Return after how long an actor is told that a queue is full; None: never."""
        told = actor.request("channel", self, "seconds_until_full", how)
        return None if told is None else float(told)

    def size(self, actor: Requester) -> int:
        """Return how many messages a queue has, as it tells an actor."""
        return int(actor.request("channel", self, "size"))

    def task_done(self, actor: Requester) -> None:
        """Make an actor say that a message has been dealt with."""
        actor.request("channel", self, "task_done")

    def join(self, actor: Requester) -> None:
        """Make an actor wait until all messages have been dealt with."""
        actor.request("channel", self, "join")

    def close(self, actor: Requester) -> None:
        """Make an actor close all that it has of the channel."""
        actor.request("channel", self, "close")

    def drop(self, actor: Requester) -> None:
        """Make an actor forget the channel."""
        actor.request("drop_channel", self.name)
