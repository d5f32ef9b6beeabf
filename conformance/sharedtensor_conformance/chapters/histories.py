"""Runs random histories of sends, views, writes and drops, and compares the values.

A history is a list of steps, which three processes perform one after another. A model
performs the same steps. In the model a tensor is a window on a list of numbers, and a
tensor that was sent arrives as a window on the same list. After the steps that can
change or reveal a value (`CHECKED_AFTER`), every tensor must have the values of the
model. `history_search` shortens a history that fails. Its report shows it as lines that
can be pasted into a test.

A step is data: a kind, and numbers that pick among the present tensors, processes and
channels. If nothing fits, the step does nothing. So every part of a history is a
history too, and can be tried when a history is shortened.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from sharedtensor_conformance.adapter import Layout
from sharedtensor_conformance.chapters import history_search
from sharedtensor_conformance.chapters.history_search import (
    FAILURES,
    HistoryFailed,
    Step,
)
from sharedtensor_conformance.harness import check
from sharedtensor_conformance.harness.outcomes import CheckFailed, DeadlineExceeded
from sharedtensor_conformance.harness.proxies import Remote

NEEDED = {
    "rest": "core",
    "make": "core",
    "send": "core",
    "put": "core",
    "get": "core",
    "send_two": "core",
    "write": "core",
    "drop": "core",
    "share": "share",
    "clone": "share",
    "view": "views",
    "set_grad": "grad",
    "take_grad": "grad",
    "clear_grad": "grad",
}
"""The kinds of steps, and the profile whose operations each one needs."""

FREQUENT = ("send", "send", "send", "write", "write", "drop")
"""Kinds of steps that `kinds_for` lists again, so that they are drawn more often.

They show whether the other steps have disturbed the sharing.
"""

NUMBERS = 60
"""The numbers of a step are below this."""

STEPS = (14, 28)
"""The smallest and largest number of steps, including those that do nothing."""

CHECKED_AFTER = frozenset({"write", "get", "send", "send_two"})
"""Kinds of steps after which the values of every tensor are checked."""

MAX_LIVE = 6
"""Tensors that exist at once. They are few, so that steps often pick the same one."""

IN_FLIGHT = 6
"""Messages in flight at once, in all channels. No channel has to contain more."""


THREADED = 4
"""One in this many messages is put by a new thread, and one is received by one."""


def is_in_a_thread(number: int) -> bool:
    """Return whether a number of a step selects a new thread."""
    return number % THREADED == THREADED - 1


@dataclass
class Memory:
    """The model of a storage.

    Attributes:
        values: the values of its elements.
        moved: whether it is in shared memory for certain, and no longer moves.
        in_flight: the number of messages that carry it.
    """

    values: list[int]
    moved: bool = False
    in_flight: int = 0

    @property
    def settled(self) -> bool:
        """Whether no `put` can still be moving it into shared memory.

        An implementation that breaks clause CHAN-7 may move a storage after `put` has
        returned, until the message arrives. Other tests judge that clause.
        """
        return self.moved or not self.in_flight


@dataclass
class Window:
    """The model of a tensor: the indices of its elements in a memory, and its grad."""

    memory: Memory
    places: list[int]
    grad: Window | None = None

    @property
    def whole(self) -> bool:
        """Whether it has all elements of the memory, in their order."""
        return self.places == list(range(len(self.memory.values)))

    def values(self) -> list[int]:
        """Return the values that the tensor must have."""
        return [self.memory.values[place] for place in self.places]

    def sent(self, message: dict[int, Window]) -> Window:
        """Return the window of the tensor that arrives when this one is sent.

        `message` maps the identity of each sent window of the same message to the
        arriving one. A tensor that is in a message twice, for example also as the grad
        of another, arrives as one tensor.
        """
        if id(self) not in message:
            arrives = message[id(self)] = Window(self.memory, self.places)
            arrives.grad = self.grad and self.grad.sent(message)
        return message[id(self)]

    def memories(self) -> Iterator[Memory]:
        """Yield its memory, that of its grad, and so on."""
        yield self.memory
        if self.grad:
            yield from self.grad.memories()

    @property
    def settled(self) -> bool:
        """Whether none of its memories can still be moving."""
        return all(memory.settled for memory in self.memories())


@dataclass
class HeldTensor:
    """A tensor in a process, with its name in the script and its model."""

    name: str
    actor: Any
    remote: Any
    window: Window


@dataclass
class Message:
    """A message in flight, with its windows; `is_list` if it is a list of tensors."""

    windows: list[Window]
    is_list: bool


@dataclass
class History:
    """Runs one history, in the processes and in the model.

    Args:
        actors: the processes.
        channels: the kinds of channels that they use.
        outlives: whether a tensor may be dropped while another process or a message
            has its memory. Only the profile `lifetime` permits this.
        grads: whether the grads of all tensors are checked at the end.
        gaps: whether a view may leave out elements.

    Attributes:
        messages: the messages in flight, by index of sender, index of receiver, and
            channel.
        lines: the script.
        numbers: the last number that an element got.
        names: how many tensors got a name.
    """

    actors: tuple[Any, ...]
    channels: tuple[str, ...]
    outlives: bool
    grads: bool
    gaps: bool = True
    held: list[HeldTensor] = field(default_factory=list)
    messages: dict[tuple[int, int, str], deque[Message]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    numbers: int = 0
    names: int = 0

    def take(self, steps: list[Step]) -> None:
        """Run the steps, and drop everything at the end.

        Raises:
            HistoryFailed: a check, a process or the suite failed.
        """
        try:
            for kind, *picks in steps:
                if not self.held and kind != "rest":
                    kind = "make"  # no other step is possible
                getattr(self, f"step_{kind}")(*picks)
                if kind in CHECKED_AFTER:
                    self.verify()
            self.finish()
        except Exception as error:
            script = "\n".join(f"    {line}" for line in self.lines)
            raise HistoryFailed(error, script) from error

    def verify(self) -> None:
        """Check the values of every settled tensor."""
        for tensor in self.held:
            if tensor.window.settled:
                found, due = tensor.remote.values(), tensor.window.values()
                sentence = f"{tensor.name}.values() is {due} at the end of this"
                check.equal(found, due, sentence)

    def finish(self) -> None:
        """Receive all messages, check all tensors and grads, and drop everything."""
        self.receive_all()
        self.verify()
        if self.grads:
            for tensor in list(self.held):
                self.take_grads(tensor)
            self.verify()
        self.drop_all()

    def receive_all(self) -> None:
        """Receive all messages in flight."""
        for route in sorted(self.messages):
            while self.messages[route]:
                self.receive(route)

    def drop_all(self) -> None:
        """Drop all tensors."""
        while self.held:
            self.held.pop().remote.drop()

    # Picking

    def pick(
        self, number: int, fits: Callable[[HeldTensor], object]
    ) -> HeldTensor | None:
        """Return one of the settled tensors that fit; None if there is none."""
        fitting = [t for t in self.held if t.window.settled and fits(t)]
        return fitting[number % len(fitting)] if fitting else None

    def route(self, sender: Any, number: int) -> tuple[int, int, str]:
        """Return the indices of the sender and of a receiver, and a channel."""
        start = self.actors.index(sender)
        others = [i for i in range(len(self.actors)) if i != start]
        receiver = others[number % len(others)]
        channel = self.channels[number // len(others) % len(self.channels)]
        return start, receiver, channel

    def new_numbers(self, count: int) -> list[int]:
        """Return `count` numbers that no element has had before.

        A history needs so few of them that they are exact in any dtype.
        """
        first = self.numbers + 1
        self.numbers += count
        return list(range(first, self.numbers + 1))

    def hold(self, actor: Any, remote: Any, window: Window) -> str:
        """Add a tensor to the held ones, and return its name.

        If the same object is held already, such as a grad that was read twice, the new
        name replaces the old one.

        Raises:
            CheckFailed: `remote` is not a tensor.
        """
        name = f"t{self.names}"
        check(isinstance(remote, Remote), f"{name} is a tensor")
        self.held = [
            one for one in self.held if not one.remote.is_same_reference_as(remote)
        ]
        self.names += 1
        self.held.append(HeldTensor(name, actor, remote, window))
        return name

    # Steps

    def step_rest(self, _: int, __: int, ___: int) -> None:
        """Do nothing."""

    def step_make(self, who: int, length: int, _: int) -> None:
        """Let a process make a tensor."""
        if len(self.held) >= MAX_LIVE:
            return
        actor = self.actors[who % len(self.actors)]
        values = self.new_numbers(3 + length % 4)
        name = self.hold(
            actor,
            actor.make(values),
            Window(Memory(list(values)), list(range(len(values)))),
        )
        self.lines.append(f"{name} = {actor.name}.make({values})")

    def step_write(self, which: int, where: int, _: int) -> None:
        """Let a process write one element."""
        if tensor := self.pick(which, lambda t: True):
            index = where % len(tensor.window.places)
            (value,) = self.new_numbers(1)
            self.lines.append(f"{tensor.name}.write({index}, {value})")
            tensor.remote.write(index, value)
            tensor.window.memory.values[tensor.window.places[index]] = value

    def step_share(self, which: int, _: int, __: int) -> None:
        """Let a process share a tensor; its grad may be shared with it or not."""
        if tensor := self.pick(which, lambda t: True):
            self.lines.append(f"{tensor.name}.share()")
            tensor.remote.share()
            tensor.window.memory.moved = True

    def step_clone(self, which: int, _: int, __: int) -> None:
        """Let a process clone a tensor, which copies its values to another memory."""
        tensor = self.pick(which, lambda t: len(self.held) < MAX_LIVE)
        if tensor:
            values = tensor.window.values()
            window = Window(Memory(values), list(range(len(values))))
            name = self.hold(tensor.actor, tensor.remote.clone(), window)
            self.lines.append(f"{name} = {tensor.name}.clone()")

    def step_view(self, which: int, offset: int, step: int) -> None:
        """Let a process make a view: all elements from an offset, or every second."""
        tensor = self.pick(
            which, lambda t: t.window.whole and len(self.held) < MAX_LIVE
        )
        if tensor:
            places = tensor.window.places
            start = offset % max(len(places) - 1, 1)
            stride = 1 + step % 2 if self.gaps else 1
            seen = places[start::stride]
            layout = Layout("window", start, (len(seen),), (stride,))
            remote = tensor.remote.view(layout)
            name = self.hold(tensor.actor, remote, Window(tensor.window.memory, seen))
            self.lines.append(f"{name} = {tensor.name}.view({layout})")

    def step_drop(self, which: int, _: int, __: int) -> None:
        """Let a process drop a tensor. Other tensors and messages keep their values."""
        tensor = self.pick(which, lambda t: self.outlives or self.only_here(t))
        if tensor:
            self.lines.append(f"{tensor.name}.drop()")
            self.held.remove(tensor)
            tensor.remote.drop()

    def only_here(self, tensor: HeldTensor) -> bool:
        """Return whether no other process and no message has the tensor's memory."""
        memory = tensor.window.memory
        holders = {id(t.actor) for t in self.held if t.window.memory is memory}
        return not memory.in_flight and len(holders) == 1

    def step_set_grad(self, which: int, _: int, __: int) -> None:
        """Let a process set the grad of a tensor without one.

        The memory of the tensor must not be in flight.
        """
        tensor = self.pick(
            which, lambda t: not t.window.grad and not t.window.memory.in_flight
        )
        if tensor and len(self.held) < MAX_LIVE:
            values = self.new_numbers(len(tensor.window.places))
            grad = tensor.actor.make(values)
            window = Window(Memory(list(values)), list(range(len(values))))
            name = self.hold(tensor.actor, grad, window)
            self.lines.append(f"{name} = {tensor.actor.name}.make({values})")
            self.lines.append(f"{tensor.name}.set_grad({name})")
            tensor.remote.set_grad(grad)
            tensor.window.grad = window

    def step_clear_grad(self, which: int, _: int, __: int) -> None:
        """Let a process set the grad of a tensor to None.

        Tensors of other processes keep theirs.
        """
        tensor = self.pick(
            which, lambda t: t.window.grad and not t.window.memory.in_flight
        )
        if tensor:
            self.lines.append(f"{tensor.name}.set_grad(None)")
            tensor.remote.set_grad(None)
            tensor.window.grad = None

    def step_take_grad(self, which: int, _: int, __: int) -> None:
        """Let a process read the grad of a tensor, which may have arrived with it."""
        if tensor := self.pick(which, lambda t: len(self.held) < MAX_LIVE):
            self.take_grad(tensor)

    def take_grads(self, tensor: HeldTensor) -> None:
        """Read the grad of a tensor, the grad of the grad, and so on."""
        while tensor.window.grad:
            self.take_grad(tensor)
            tensor = self.held[-1]
        self.take_grad(tensor)

    def take_grad(self, tensor: HeldTensor) -> None:
        """Check whether a tensor has a grad, as in the model, and hold the grad."""
        grad, due = tensor.remote.grad(), tensor.window.grad
        sentence = f"{tensor.name} has {'a' if due else 'no'} grad at the end of this"
        check.equal(grad is not None, due is not None, sentence)
        if due:
            name = self.hold(tensor.actor, grad, due)
            self.lines.append(f"{name} = {tensor.name}.grad()")

    # Messages

    def step_put(self, which: int, to: int, who: int) -> None:
        """Let a process put a tensor on a channel."""
        if tensor := self.pick(which, lambda t: True):
            self.put([tensor], self.route(tensor.actor, to), is_in_a_thread(who))

    def step_send(self, which: int, to: int, who: int) -> None:
        """Let a process put a tensor, and receive the oldest message of the channel."""
        if tensor := self.pick(which, lambda t: True):
            route = self.route(tensor.actor, to)
            if self.put([tensor], route, is_in_a_thread(who)):
                self.receive(route, is_in_a_thread(who // THREADED))

    def step_send_two(self, which: int, other: int, to: int) -> None:
        """Let a process send two tensors in one message."""
        if first := self.pick(which, lambda t: True):
            second = self.pick(
                other, lambda t: t.actor is first.actor and t is not first
            )
            route = self.route(first.actor, to)
            if second and self.put([first, second], route):
                self.receive(route)

    def step_get(self, which: int, who: int, _: int) -> None:
        """Let a process receive a message that is in flight."""
        routes = sorted(route for route, messages in self.messages.items() if messages)
        if routes:
            self.receive(routes[which % len(routes)], is_in_a_thread(who))

    def put(
        self,
        tensors: list[HeldTensor],
        route: tuple[int, int, str],
        in_a_thread: bool = False,
    ) -> bool:
        """Put a message on a channel, unless too many are in flight.

        Returns whether it was put.
        """
        if sum(map(len, self.messages.values())) >= IN_FLIGHT:
            return False
        sender, receiver = self.actors[route[0]], self.actors[route[1]]
        is_list = len(tensors) > 1
        names = ", ".join(tensor.name for tensor in tensors)
        said = f"[{names}]" if is_list else names
        put = "put_in_a_thread" if in_a_thread else "put"
        self.lines.append(f'{sender.name}.{put}({said}, {receiver.name}, "{route[2]}")')
        remotes = [tensor.remote for tensor in tensors]
        payload = remotes if is_list else remotes[0]
        getattr(sender, put)(payload, receiver, route[2])
        together: dict[int, Window] = {}
        windows = [tensor.window.sent(together) for tensor in tensors]
        for window in windows:
            for memory in window.memories():
                memory.in_flight += 1
        self.messages.setdefault(route, deque()).append(Message(windows, is_list))
        return True

    def receive(self, route: tuple[int, int, str], in_a_thread: bool = False) -> None:
        """Receive the oldest message of a route, and hold its tensors."""
        sender, receiver = self.actors[route[0]], self.actors[route[1]]
        message = self.messages[route].popleft()
        first = self.names
        names = [f"t{first + i}" for i in range(len(message.windows))]
        get = "get_in_a_thread" if in_a_thread else "get"
        call = f'{receiver.name}.{get}({sender.name}, "{route[2]}")'
        self.lines.append(f"{', '.join(names)} = {call}")
        arrived = getattr(receiver, get)(sender, route[2])
        remotes = arrived if message.is_list else [arrived]
        is_whole = isinstance(remotes, list) and len(remotes) == len(names)
        check(is_whole, f"a message of {len(names)} tensors arrives as it was sent")
        for remote, window in zip(remotes, message.windows, strict=True):
            self.hold(receiver, remote, window)
            for memory in window.memories():
                memory.in_flight -= 1
                memory.moved = True


class Processes:
    """Runs histories in the processes of a stage.

    They are those of the case at first. After a failure other than a wrong value, new
    processes replace them.
    """

    def __init__(self, stage: Any, grads: bool) -> None:
        self.stage = stage
        self.grads = grads
        self.actors = self._ready(stage)
        self.isolated = ExitStack()
        self.has_hung = False

    def _ready(self, stage: Any) -> tuple[Any, ...]:
        actors = (stage.owner, stage.peer, stage.bystander)
        for actor in actors:  # before there is a tensor that it could inherit
            actor.ensure_started()
        return actors

    def renew(self) -> None:
        """Start new processes, on an isolated stage."""
        self.isolated.close()
        stage = self.isolated.enter_context(self.stage.fresh())
        self.actors = self._ready(stage)
        if self.has_hung:
            stage.timeouts.shorten()

    def take(self, steps: list[Step]) -> HistoryFailed | None:
        """Run a history; return its failure, or None if it did not fail."""
        implementation = self.stage.implementation
        history = History(
            self.actors,
            implementation.channels,
            outlives="lifetime" in implementation.claims,
            grads=self.grads,
            gaps="steps" in implementation.views,
        )
        try:
            history.take(steps)
        except HistoryFailed as failed:
            self.recover(history, failed)
            return failed
        return None

    def recover(self, history: History, failed: HistoryFailed) -> None:
        """Clean up after a failed check; after any other failure, start new processes.

        New processes are also started if the cleanup fails.
        """
        if isinstance(failed.error, CheckFailed):
            with suppress(*FAILURES):
                history.receive_all()
                history.drop_all()
                return
        self.has_hung |= isinstance(failed.error, DeadlineExceeded)
        self.renew()


def kinds_for(claims: frozenset[str], grads: bool) -> list[str]:
    """Return the kinds of steps whose profiles are claimed, and `FREQUENT`."""
    kinds = [
        kind
        for kind, profile in NEEDED.items()
        if profile in claims and (grads or profile != "grad")
    ]
    return [*kinds, *FREQUENT]


def search(stage: Any, kinds: list[str], count: int, seed: int) -> None:
    """Run `count` histories of these kinds of steps.

    Raises:
        CheckFailed, ActorDied, DeadlineExceeded, HarnessFault: a history failed. The
            message contains the shortest failing one that was found.
    """
    processes = Processes(stage, "take_grad" in kinds)

    def draw(chance: Random) -> list[Step]:
        found = chance.choices(kinds, k=chance.randint(*STEPS))
        return [history_search.drawn(chance, kind, NUMBERS) for kind in found]

    with processes.isolated:
        history_search.search(draw, processes, count, seed)
