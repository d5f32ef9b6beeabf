"""What a test holds: actors and their tensors, by remote call.

Nothing here knows what a tensor is. Plain results are returned as they are; everything
else stays in its process and comes back as a `Remote`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sharedtensor_conformance.adapter import PROFILES, Layout, operations_of
from sharedtensor_conformance.harness import wire
from sharedtensor_conformance.harness.checks import tally, wait_until
from sharedtensor_conformance.harness.outcomes import (
    ActorDied,
    DeadlineExceeded,
    HarnessFault,
    RemoteError,
    RemoteRaised,
)

if TYPE_CHECKING:
    from sharedtensor_conformance.harness.stage import Stage

OPERATIONS = frozenset(name for profile in PROFILES for name in operations_of(profile))


class Remote:
    """An object of the implementation, in the process of an actor.

    Every operation of the adapter is a method: ``tensor.write(1, 5)``.
    """

    def __init__(self, actor: ActorProxy, key: str) -> None:
        self.actor = actor
        self.key = key

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in OPERATIONS:
            raise AttributeError(f"the adapter contract has no operation {name!r}")
        return lambda *arguments: self.actor.operate(name, self, *arguments)

    def read(self, index: int | tuple[int, ...]) -> Any:
        """Return the value of one element."""
        return self.actor.operate("read", self, _index(index))

    def write(self, index: int | tuple[int, ...], value: Any) -> None:
        """Write one element in place."""
        self.actor.operate("write", self, _index(index), value)

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
        """Tell whether both are one Python object in their process."""
        return bool(self.actor.request("same", self, other))

    def names_the_same_as(self, other: Remote) -> bool:
        """Tell whether both name one object, without asking its process."""
        return (self.actor, self.key) == (other.actor, other.key)

    def drop(self) -> None:
        """Release it in its process."""
        self.actor.request("drop", self.key)


def _index(index: int | tuple[int, ...]) -> tuple[int, ...]:
    return index if isinstance(index, tuple) else (index,)


class ActorProxy:
    """An actor, as a test sees it. Every operation of the adapter is a method."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage = stage
        self.name = name
        self.wire: wire.Wire | None = None
        self.pid = 0
        self.pidfd = -1
        self.answer: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in OPERATIONS:
            raise AttributeError(f"the adapter contract has no operation {name!r}")
        return lambda *arguments: self.operate(name, *arguments)

    # Requests

    def request(self, what: str, *arguments: Any, deadline: float = 0.0) -> Any:
        """Ask the process for something and return its answer.

        Raises:
            RemoteRaised: the implementation raised.
            ActorDied: the process ended.
            DeadlineExceeded: it gave no answer in time.
            HarnessFault: the suite or the adapter is at fault.
        """
        self.stage.ensure(self)
        tally.remote_calls += 1
        return self.exchange(what, *arguments, deadline=deadline)

    def exchange(self, what: str, *arguments: Any, deadline: float = 0.0) -> Any:
        """Ask, without starting the process first."""
        doing = f"{what} {arguments[0]}" if what == "operate" else what
        self._ask(what, *arguments)
        return self._answered(doing, deadline)

    def _ask(self, what: str, *arguments: Any) -> None:
        message = {"do": what, "with": [wire.encode(a, self._refer) for a in arguments]}
        if self.wire is None:
            raise HarnessFault(f"{self.name} has ended already")
        try:
            self.wire.send(message)
        except wire.WireClosed:
            raise ActorDied(self.stage.how_it_ended(self, what)) from None
        except wire.WireTimeout:
            raise DeadlineExceeded(f"{self.name} did not read: {what}") from None

    def _answered(self, doing: str, deadline: float = 0.0) -> Any:
        return self._result(self._received(doing, deadline), doing)

    def _received(self, doing: str, deadline: float = 0.0) -> dict[str, Any]:
        assert self.wire is not None, "it was asked"
        try:
            until = self.stage.until(deadline)
            answer: dict[str, Any] = self.wire.receive(until, also=self.pidfd)
            return answer
        except wire.WireClosed:
            raise ActorDied(self.stage.how_it_ended(self, doing)) from None
        except wire.WireTimeout:
            limit = deadline or self.stage.deadline
            raise self.stage.late(self, doing, limit) from None

    def _result(self, answer: dict[str, Any], doing: str) -> Any:
        if "ok" in answer:
            return wire.decode(answer["ok"], self._resolve)
        if "raised" in answer:
            raise RemoteRaised(RemoteError(self.name, **answer["raised"]), doing)
        fault = RemoteError(self.name, **answer["fault"])
        raise HarnessFault(
            f"{fault} (while it was asked to {doing})\n{fault.traceback}"
        )

    def _refer(self, value: Any) -> dict[str, Any]:
        if isinstance(value, Layout):
            return {"layout": asdict(value)}
        if not isinstance(value, Remote):
            raise HarnessFault(f"a {type(value).__name__} cannot be sent to an actor")
        if value.actor is not self:
            raise HarnessFault(f"{value.actor.name}'s object was given to {self.name}")
        return {"reference": value.key}

    def _resolve(self, data: dict[str, Any]) -> Remote:
        return Remote(self, data["reference"])

    # Requests that stop at a step

    def begin(self, what: str, *arguments: Any) -> bool:
        """Ask for something; return whether the process waits at a step of it.

        Either way `finish` returns the answer.
        """
        self._ask(what, *arguments)
        self.answer = self._received(what)
        return "at" in self.answer

    def go(self, how: str) -> None:
        """Let a process that waits at a step go on: ``""`` means as if nothing was."""
        assert self.wire is not None, "it waits"
        with suppress(wire.WireClosed):  # it was killed there: `finish` says so
            self.wire.send({"go": how})

    def finish(self, what: str) -> Any:
        """Return the answer to what was begun; the same is raised as by `request`."""
        tally.remote_calls += 1
        answer = self._received(what) if "at" in self.answer else self.answer
        return self._result(answer, what)

    def operate(self, name: str, *arguments: Any) -> Any:
        """Call an operation of the adapter in the process."""
        return self.request("operate", name, *arguments)

    # Tensors and messages

    def make(
        self,
        values: list[Any],
        shape: tuple[int, ...] | None = None,
        dtype: str = "float32",
    ) -> Remote:
        """Return a new tensor; one-dimensional where no shape is given."""
        shape = (len(values),) if shape is None else shape
        made: Remote = self.operate("make", values, shape, dtype)
        return made

    def put(self, payload: Any, to: ActorProxy, channel: str = "") -> None:
        """Put `payload` on a channel to another actor; on the first one by default."""
        self.stage.ensure(to)
        self.request("put", to.name, channel or self._first_channel, payload)
        self.stage.in_flight += 1

    def get(self, sender: ActorProxy, channel: str = "") -> Any:
        """Return the next payload from another actor, as it arrived here."""
        payload = self.request("get", sender.name, channel or self._first_channel)
        self.stage.in_flight -= 1
        return payload

    def send(self, payload: Any, to: ActorProxy, channel: str = "") -> Any:
        """Put `payload` and return it as it arrived."""
        self.put(payload, to, channel)
        return to.get(self, channel)

    def has_message(self, sender: ActorProxy, channel: str = "") -> bool:
        """Tell whether a message from another actor can be received."""
        name = channel or self._first_channel
        return bool(self.request("has_message", sender.name, name))

    @property
    def _first_channel(self) -> str:
        return self.stage.implementation.channels[0]

    # The drop-in module

    def module(self, name: str, *arguments: Any) -> Any:
        """Call a function of the drop-in module."""
        return self.request("module", name, *arguments)

    def module_lacks(self, names: list[str]) -> list[str]:
        """Return the names that the drop-in module does not have."""
        lacking: list[str] = self.request("module_lacks", names)
        return lacking

    def context_lacks(self, method: str, names: list[str]) -> list[str]:
        """Return the names that the context of a start method does not have."""
        lacking: list[str] = self.request("context_lacks", method, names)
        return lacking

    def context_start_method(self, method: str) -> str:
        """Return what the context of `method` says its start method is."""
        return str(self.request("context_start_method", method))

    def try_context(self, method: str) -> None:
        """Call ``get_context(method)``."""
        self.request("try_context", method)

    # Processes

    def start_peer(
        self,
        arguments: Any = None,
        start_method: str | None = None,
        enter: bool = True,
    ) -> ActorProxy:
        """Start a peer of this owner for one case; `arguments` is among its own.

        Where `enter` is false the adapter's `enter_child` is not called in it, so that
        it keeps the strategy it was born with.
        """
        peer = self.stage.start_peer(arguments, start_method, enter)
        return peer

    @property
    def arguments(self) -> Any:
        """The arguments that this process was started with, as they arrived."""
        return self.request("arguments")

    def leave(self) -> int | None:
        """Let the process end normally; return its exit code."""
        return self.stage.leave(self)

    def kill(self) -> None:
        """Kill the process by SIGKILL and wait until it is gone."""
        self.stage.ensure(self)
        os.kill(self.pid, signal.SIGKILL)
        self.stage.wait_end(self)

    def is_alive(self) -> bool:
        """Tell whether the process runs."""
        return self.wire is not None and not self.stage.has_ended(self)

    @contextmanager
    def pool(self, processes: int = 1, kind: str = "pool") -> Iterator[PoolProxy]:
        """A pool of workers whose tasks this process submits.

        `kind` is ``"pool"``, or ``"executor"`` for one of `concurrent.futures` that was
        given the drop-in's context.
        """
        pool = PoolProxy(self, f"pool-{self.stage.next_number()}")
        method = self.stage.configuration.start_method
        self.request(
            *("open_pool", pool.name, processes, method, kind),
            deadline=self.stage.patience,
        )
        try:
            yield pool
        finally:
            if self.is_alive():
                self.request("close_pool", pool.name)

    # What the process holds

    def descriptors(self) -> int:
        """Return how many descriptors the process has open."""
        return int(self._account()["descriptors"])

    def mappings(self) -> int:
        """Return how many mappings of shared memory the process has."""
        return int(self._account()["mappings"])

    def threads(self) -> int:
        """Return how many threads the process has."""
        return int(self._account()["threads"])

    def targets(self) -> list[str]:
        """Return what the descriptors of the process point to, such as a pipe."""
        self.stage.ensure(self)
        found: list[str] = self.stage.details(self.pid)["targets"]
        return found

    def _account(self) -> dict[str, Any]:
        self.stage.ensure(self)
        held: dict[str, Any] = self.stage.ledger()["processes"][str(self.pid)]
        return held

    def set_limit(self, name: str, value: int) -> int:
        """Set the soft limit ``RLIMIT_<name>``; return the one before."""
        return int(self.request("set_limit", name, value))

    def set_umask(self, mask: int) -> int:
        """Set the mask of the modes of new files; return the one before."""
        return int(self.request("set_umask", mask))

    def ignore_signal(self, number: int) -> None:
        """Let the process live on when it gets this signal."""
        self.request("ignore_signal", number)

    @contextmanager
    def short_of(self, what: str, spare: int = 0) -> Iterator[None]:
        """Leave the process only `spare` more of something for a while.

        `what` is ``"descriptors"`` or ``"mappings"`` (an even number of them);
        ``"memory"``, bytes by which its address space may grow; or ``"file_size"``,
        bytes that a file may have.
        """
        self.request("exhaust", what, spare)
        try:
            yield
        finally:
            if self.is_alive():
                self.request("relieve", what)

    @contextmanager
    def interrupted(self, interval: float = 0.0005) -> Iterator[Interrupted]:
        """Let a signal with a Python handler arrive in the process all the time."""
        found = Interrupted()
        self.request("interrupt", interval)
        try:
            yield found
        finally:
            if self.is_alive():
                found.times = self.request("stop_interrupting")

    @contextmanager
    def getting(self, sender: ActorProxy, channel: str = "") -> Iterator[Pending]:
        """Let the process wait for a message from another actor during the block.

        The block must not ask this process for anything; the message is in `payload`
        after it.
        """
        self.stage.ensure(self)
        pending = Pending(self)
        self._ask("get", sender.name, channel or self._first_channel)
        yield pending
        tally.remote_calls += 1
        pending.payload = self._answered("get")
        self.stage.in_flight -= 1

    # Situations

    def situation(self, name: str, *arguments: Any) -> Any:
        """Bring the process into a situation: a function of `harness.situations`."""
        return self.request("situation", name, *arguments)

    def open_channel(self, kind: str) -> Remote:
        """Make a channel that belongs to no pair of actors; it can be an argument."""
        method = self.stage.configuration.start_method
        made: Remote = self.request(
            *("situation", "open_channel", kind, method),
            deadline=self.stage.patience,  # a manager is a process of its own
        )
        return made

    def waiting_for(self, channel: Remote, how: str = "get_from") -> Pending:
        """Let the process wait for a message on such a channel."""
        self.stage.ensure(self)
        pending = Pending(self)
        pending.begin("situation", how, channel)
        return pending

    def end(self, how: str) -> int | None:
        """Let the process end ``by os._exit``, ``by an exception``, ``by SIGTERM``."""
        self.stage.ensure(self)
        self._ask("situation", "end", how)
        return self.stage.wait_end(self)

    @contextmanager
    def as_a_program(self) -> Iterator[None]:
        """Let the process replace itself by another program, which is killed after."""
        self.stage.ensure(self)
        self._ask("situation", "become_a_program")
        with suppress(wire.WireClosed):
            assert self.wire is not None, "it was asked"
            answer = self.wire.receive(self.stage.until())
            self._result(answer, "become another program")
        tally.remote_calls += 1
        try:
            yield
        finally:
            self.kill()

    @contextmanager
    def program(self) -> Iterator[int]:
        """Let the process start another program, which waits; its pid."""
        pid = int(self.situation("start_a_program"))
        try:
            yield pid
        finally:
            if self.is_alive():
                self.situation("end_programs")

    def start_together(
        self, task: str, count: int, payload: Any, how: str, join: bool = True
    ) -> Any:
        """Start `count` processes for a task of `harness.tasks`; see chapter SPAWN.

        `how` is a start method, or ``"spawn()"`` for the function of that name. The
        payload is a list of tensors. Returns what the call returns; a dictionary that
        tells it where a ``ProcessException`` was raised.
        """
        patience = self.stage.patience
        arguments = ("start_together", task, count, payload, how, join)
        return self.request("situation", *arguments, deadline=patience)

    def join_together(self, context: Remote, timeout: float | None = None) -> Any:
        """Join such processes: what the call returns, or a dictionary as above."""
        patience = self.stage.patience
        return self.request(
            "situation", "join_together", context, timeout, deadline=patience
        )

    def open_pipe(self) -> tuple[int, int]:
        """Open a pipe in the process; return its descriptors there."""
        reader, writer = self.request("open_pipe")
        return reader, writer

    def close_descriptor(self, descriptor: int) -> None:
        """Close a descriptor in the process."""
        self.request("close_descriptor", descriptor)


@dataclass
class Interrupted:
    """How often a process was interrupted; known when that is over."""

    times: int = 0


class Pending:
    """A message that an actor waits for."""

    def __init__(self, actor: ActorProxy) -> None:
        self.actor = actor
        self.payload: Any = None
        self.before = 0

    def begin(self, what: str, *arguments: Any) -> None:
        """Ask the process for something, when it waits for nothing but that."""
        wait_until(lambda: self._field("State").startswith("S"), self.actor.stage.grace)
        self.before = self.times_woken()
        self.actor._ask(what, *arguments)

    def is_waiting(self) -> bool:
        """Tell whether the process waits in what it was asked for."""
        asleep = self._field("State").startswith("S")
        return asleep and self.times_woken() > self.before

    def answer(self) -> Any:
        """Return what the process answers."""
        tally.remote_calls += 1
        return self.actor._answered("get")

    def times_woken(self) -> int:
        """Return how often the waiting process has given up the processor so far."""
        return int(self._field("voluntary_ctxt_switches"))

    def _field(self, name: str) -> str:
        with open(f"/proc/{self.actor.pid}/status") as file:
            fields = dict(line.split(":", 1) for line in file)
        return fields[name].strip()


class PoolProxy:
    """A pool in an actor."""

    def __init__(self, owner: ActorProxy, name: str) -> None:
        self.owner = owner
        self.name = name

    def _run(self, task: str, *arguments: Any) -> Any:
        # A worker imports the implementation before its first task.
        patience = self.owner.stage.patience
        return self.owner.request(
            "run_task", self.name, task, list(arguments), deadline=patience
        )

    def write_and_return(
        self, payload: Any, index: int | tuple[int, ...], value: Any
    ) -> Any:
        """Let a worker write one element of every tensor; return its result."""
        return self._run("write_and_return", payload, _index(index), value)

    def make_and_keep(self, values: list[Any], dtype: str = "float32") -> Remote:
        """Let the worker make a tensor, keep it and return it."""
        made: Remote = self._run("make_and_keep", values, dtype)
        return made

    def read_kept(self, index: int | tuple[int, ...]) -> Any:
        """Return one value of the tensor that the worker keeps."""
        return self._run("read_kept", _index(index))

    def write_kept(self, index: int | tuple[int, ...], value: Any) -> None:
        """Let the worker write one value of the tensor that it keeps."""
        self._run("write_kept", _index(index), value)
