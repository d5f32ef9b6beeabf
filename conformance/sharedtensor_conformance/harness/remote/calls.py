"""Remote calls: a request to the process of an actor, and its answer.

Requests and answers contain references to objects: a `Remote` is an object of one
process, and a `ChannelProxy` is a channel that several processes can have.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from sharedtensor_conformance.adapter import PROFILES, Layout, operations_of
from sharedtensor_conformance.harness.case.answer_waits import answer_waits
from sharedtensor_conformance.harness.case.checks import tally, wait_until
from sharedtensor_conformance.harness.case.listening import listener
from sharedtensor_conformance.harness.case.outcomes import (
    ActorDied,
    DeadlineExceeded,
    HarnessFault,
    RemoteError,
    RemoteRaised,
)
from sharedtensor_conformance.harness.kernel.process_tree import prolonged, status
from sharedtensor_conformance.harness.remote import wire
from sharedtensor_conformance.harness.remote.actor import Actor
from sharedtensor_conformance.harness.remote.channels import Channel
from sharedtensor_conformance.harness.remote.marks import is_marked
from sharedtensor_conformance.harness.remote.process import Process

if TYPE_CHECKING:
    from sharedtensor_conformance.harness.stage.stage import Stage

P = ParamSpec("P")
Result = TypeVar("Result")

OPERATIONS = frozenset(name for profile in PROFILES for name in operations_of(profile))

DTYPES_MADE: dict[str, Callable[..., list[str]]] = {
    "make": lambda values, shape, dtype: [dtype],
    "reinterpret": lambda tensor, dtype: [dtype],
    "make_on_device": lambda values, dtype: [dtype],
    "make_on": lambda index, values, dtype: [dtype],
    "make_across": lambda values, dtype: [dtype],
    "make_unexportable": lambda values, dtype: [dtype],
    "carve": lambda parts: [dtype for _, dtype in parts],
}
"""What returns the dtypes that an operation is asked to make, of its arguments."""


def name_of_request(what: str, *arguments: Any) -> str:
    """Return what evidence calls a request."""
    match what:
        case "run":
            name: str = arguments[0].__name__
            return name
        case "operate":
            return f"operate {arguments[0]}"
    return what


def refuse_names(named: Mapping[str, object]) -> None:
    """Raise an exception if arguments are named, since they are sent by position."""
    if named:
        raise HarnessFault(f"arguments have no names in a request: {[*named]}")


def index_tuple(index: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return the index of an element as the adapter wants it."""
    return index if isinstance(index, tuple) else (index,)


class Requester:
    """Asks the process of an actor for something, and takes its answer."""

    def __init__(self, host: Stage, name: str) -> None:
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

    def deadline_of(self, *request: Any) -> float:
        """Return the seconds that a request may take: see `starts_processes`."""
        starts = any(map(is_marked, request))
        return self.host.timeouts.start if starts else self.deadline

    def is_alive(self) -> bool:
        """Return whether the process runs."""
        return self.process.is_alive()

    def ensure_started(self) -> None:
        """Start the process if it has not been started.

        Raises:
            NotRun: the configuration cannot run here.
            ActorDied, DeadlineExceeded, RemoteRaised: it could not be started.
        """
        if self.process.wire is None:
            with answer_waits.starting():
                self.host.starter.ensure(self)

    def run(
        self,
        function: Callable[Concatenate[Actor, P], Result],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> Result:
        """Call a function of the suite in the process, and return its result.

        The function, of a module or of the class `Actor`, is imported there. Its first
        parameter is the actor. The others are sent by their positions.

        Raises:
            RemoteRaised: the implementation raised.
            ActorDied: the process ended.
            DeadlineExceeded: it gave no answer in time.
            HarnessFault: the suite or the adapter is at fault.
        """
        limit = self.deadline_of(function, *arguments)
        return self.run_within(limit, function, *arguments, **named)

    def run_within(
        self,
        seconds: float,
        function: Callable[Concatenate[Actor, P], Result],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> Result:
        """Do the same with another deadline."""
        self.ensure_started()
        tally.remote_calls += 1
        return self.run_in_started(seconds, function, *arguments, **named)

    def run_in_started(
        self,
        seconds: float,
        function: Callable[Concatenate[Actor, P], Result],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> Result:
        """Do the same for the suite itself, without starting the process first."""
        refuse_names(named)
        result: Result = self.exchange(seconds, "run", function, *arguments)
        return result

    def start(
        self,
        function: Callable[Concatenate[Actor, P], Any],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> Pending:
        """Begin such a call, while the test goes on to ask other processes."""
        refuse_names(named)
        return Pending(self, function, *arguments)

    def run_to_end(
        self,
        function: Callable[Concatenate[Actor, P], Any],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> int | None:
        """Call a function that ends the process; return the exit status."""
        refuse_names(named)
        self.ensure_started()
        self.ask("run", function, *arguments)
        return self.host.ends.wait(self.process)

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
        self.ensure_started()
        tally.remote_calls += 1
        return self.exchange(self.deadline, "operate", name, *arguments)

    def exchange(self, seconds: float, what: str, *arguments: Any) -> Any:
        """Send a request, and return its answer, which may take so many seconds."""
        self.ask(what, *arguments)
        name = name_of_request(what, *arguments)
        return self.result(self.receive(name, seconds), name)

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
            name = name_of_request(what, *arguments)
            ended = self.host.ends.describe_end(self.process, name)
            raise ActorDied(ended) from None
        except wire.WireTimeout:
            name = name_of_request(what, *arguments)
            raise DeadlineExceeded(f"{self.name} did not read: {name}") from None

    def receive(self, request_name: str, limit: float = 0.0) -> dict[str, Any]:
        """Return the next message of the process, which may take `limit` seconds."""
        limit, timeouts = limit or self.deadline, self.host.timeouts
        waiting = answer_waits.waiting(
            request_name,
            limit,
            own=max(limit - timeouts.answer, 0.0),
            starts=limit >= timeouts.start,
        )
        with waiting as wait:
            message = self._receive(request_name, wait.limit)
            wait.answered = "ok" in message
            return message

    def _receive(self, request_name: str, limit: float) -> dict[str, Any]:
        connection = self.process.wire
        assert connection is not None, "it was asked"
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
        """Return what a message brings; the same is raised as by `run`."""
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
            case FunctionType() if "<" not in value.__qualname__:  # not a local one
                return {"function": wire.place_of(value)}
            case Layout():
                return {"layout": asdict(value)}
            case ChannelProxy():
                return {"channel": value.name}
            case Key():
                return {"key": value.name}
            case Remote() if value.actor is self:
                return {"reference": value.key.name}
            case Remote():
                whose = value.actor.name
                raise HarnessFault(f"{whose}'s object was given to {self.name}")
        raise HarnessFault(f"a {type(value).__name__} cannot be sent to an actor")

    def _resolve(self, data: dict[str, Any]) -> Remote | ChannelProxy:
        if "channel" in data:
            return ChannelProxy(data["channel"])
        return Remote(self, data["reference"])


class Pending:
    """A call of a function in which an actor waits, for example for a message."""

    def __init__(
        self, actor: Requester, function: Callable[..., Any], *arguments: Any
    ) -> None:
        actor.ensure_started()
        self.actor = actor
        self.name = function.__name__
        self.limit = actor.deadline_of(function, *arguments)
        self.payload: Any = None
        wait_until(self._sleeps, actor.deadline)  # until it waits for a request
        self.before = self.times_woken()
        actor.ask("run", function, *arguments)

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
        message = self.actor.receive(self.name, self.limit)
        self.payload = self.actor.result(message, self.name)
        return self.payload

    def times_woken(self) -> int:
        """Return how often the waiting process has given up the processor so far."""
        return int(status(self.actor.pid)["voluntary_ctxt_switches"])

    def _sleeps(self) -> bool:
        return status(self.actor.pid)["State"].startswith("S")


@dataclass(frozen=True)
class Key:
    """What a process calls an object of its own: sent, it stands for the name alone."""

    name: str


class Remote:
    """An object of the implementation, in the process of an actor.

    Every operation of the adapter is a method: ``tensor.write(1, 5)``.
    """

    def __init__(self, actor: Requester, key: str) -> None:
        self.actor = actor
        self.key: Any = Key(key)  # where it arrives, a text

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

    def same_object_as(self, other: Remote) -> bool:
        """Return whether both are one Python object in their process."""
        return self.actor.run(Actor.same, self, other)

    def is_same_reference_as(self, other: Remote) -> bool:
        """Return whether both name one object, without asking its process."""
        return (self.actor, self.key) == (other.actor, other.key)

    def drop(self) -> None:
        """Release it in its process."""
        self.actor.run(Actor.drop, self.key)


class ChannelProxy:
    """A channel that belongs to no pair of actors.

    Who made it has it, and so do the processes that got it among their arguments.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def put(self, actor: Requester, payload: Any) -> None:
        """Make an actor put a payload."""
        actor.run(Actor.put_on, self, payload)

    def get(self, actor: Requester) -> Any:
        """Return the next payload, as an actor gets it."""
        return actor.run(Actor.get_from, self)

    def get_within(self, actor: Requester, seconds: float) -> list[Any]:
        """Return what an actor gets in time: a payload in a list, or nothing."""
        limit = seconds + actor.deadline
        return actor.run_within(limit, Actor.get_within, self, seconds)

    def waiting(self, actor: Requester) -> Pending:
        """Make an actor wait for a payload."""
        return actor.start(Actor.get_from, self)

    def use(
        self,
        actor: Requester,
        method: Callable[Concatenate[Channel, P], Result],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> Result:
        """Make an actor call a method of `Channel`, such as `Channel.close_writer`."""
        refuse_names(named)
        result: Result = actor.run(Actor.use_channel, self, method, *arguments)
        return result

    def using(
        self,
        actor: Requester,
        method: Callable[Concatenate[Channel, P], Any],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> Pending:
        """Make an actor call a method in which it waits."""
        refuse_names(named)
        return actor.start(Actor.use_channel, self, method, *arguments)

    def drop(self, actor: Requester) -> None:
        """Make an actor forget the channel."""
        name: Any = Key(self.name)
        actor.run(Actor.drop_channel, name)
