"""Runs random histories of sends, views, writes and drops, and compares the values.

A history is a list of steps, which three processes perform one after another. A model
performs the same steps. In the model a storage is a list of numbers, and a tensor is a
list of indices into one. A tensor that was sent arrives as a tensor of the same
storage. After the steps that can change or reveal a value (`CHECKED_AFTER`), every
tensor must have the values of the model. `history_search` shortens a history that
fails. Its report shows it as lines that can be pasted into a test.

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
from typing import Any, NamedTuple

from sharedtensor_conformance.adapter import Layout
from sharedtensor_conformance.chapters import history_search
from sharedtensor_conformance.chapters.history_search import (
    HARNESS_ERRORS,
    History,
    HistoryFailed,
)
from sharedtensor_conformance.harness import check
from sharedtensor_conformance.harness.outcomes import CheckFailed, DeadlineExceeded
from sharedtensor_conformance.harness.proxies import Remote

PROFILE_OF_STEP = {
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

NUMBER_LIMIT = 60
"""The numbers of a step are below this."""

HISTORY_LENGTH = (14, 28)
"""The smallest and largest number of steps, including those that do nothing."""

CHECKED_AFTER = frozenset({"write", "get", "send", "send_two"})
"""Kinds of steps after which the values of every tensor are checked."""

MAX_HELD = 6
"""Tensors that exist at once. They are few, so that steps often pick the same one."""

MAX_IN_FLIGHT = 6
"""Messages in flight at once, in all channels. No channel has to contain more."""


THREAD_INTERVAL = 4
"""One in this many messages is put by a new thread, and one is received by one."""


def is_in_a_thread(number: int) -> bool:
    """Return whether a number of a step selects a new thread."""
    return number % THREAD_INTERVAL == THREAD_INTERVAL - 1


@dataclass
class StorageModel:
    """The model of a storage.

    Attributes:
        values: the values of its elements.
        has_moved: whether it is in shared memory for certain, and no longer moves.
        in_flight: the number of messages that carry it.
    """

    values: list[int]
    has_moved: bool = False
    in_flight: int = 0

    @property
    def is_settled(self) -> bool:
        """Whether no `put` can still be moving it into shared memory.

        An implementation that breaks clause CHAN-7 may move a storage after `put` has
        returned, until the message arrives. Other tests judge that clause.
        """
        return self.has_moved or not self.in_flight


@dataclass
class TensorModel:
    """The model of a tensor: the indices of its elements in a storage, and its grad."""

    storage: StorageModel
    indices: list[int]
    grad: TensorModel | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it has all elements of the storage, in their order."""
        return self.indices == list(range(len(self.storage.values)))

    def values(self) -> list[int]:
        """Return the values that the tensor must have."""
        return [self.storage.values[index] for index in self.indices]

    def as_received(self, message: dict[int, TensorModel]) -> TensorModel:
        """Return the model of the tensor that arrives when this one is sent.

        `message` maps the identity of each sent model of the same message to the
        arriving one. A tensor that is in a message twice, for example also as the grad
        of another, arrives as one tensor.
        """
        if id(self) not in message:
            received = message[id(self)] = TensorModel(self.storage, self.indices)
            received.grad = self.grad and self.grad.as_received(message)
        return message[id(self)]

    def storages(self) -> Iterator[StorageModel]:
        """Yield its storage, that of its grad, and so on."""
        yield self.storage
        if self.grad:
            yield from self.grad.storages()

    @property
    def is_settled(self) -> bool:
        """Whether none of its storages can still be moving."""
        return all(storage.is_settled for storage in self.storages())


@dataclass
class HeldTensor:
    """A tensor in a process, with its name in the script and its model."""

    name: str
    actor: Any
    remote: Any
    model: TensorModel


class Direction(NamedTuple):
    """The indices of a sender and of a receiver, and the kind of channel they use."""

    sender: int
    receiver: int
    channel: str


@dataclass
class Message:
    """A message in flight, with its tensors; `is_list` if it is a list of tensors."""

    tensors: list[TensorModel]
    is_list: bool


@dataclass
class AliasingHistory:
    """Runs one history, in the processes and in the model.

    Args:
        actors: the processes.
        channels: the kinds of channels that they use.
        may_drop_early: whether a tensor may be dropped while another process or a
            message has its storage. Only the profile `lifetime` permits this.
        grads: whether the grads of all tensors are checked at the end.
        strided_views: whether a view may leave out elements.

    Attributes:
        held: the tensors that the processes hold.
        messages: the messages in flight.
        lines: the script.
        last_value: the last number that an element got.
        name_count: how many tensors got a name.
    """

    actors: tuple[Any, ...]
    channels: tuple[str, ...]
    may_drop_early: bool
    grads: bool
    strided_views: bool = True
    held: list[HeldTensor] = field(default_factory=list)
    messages: dict[Direction, deque[Message]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    last_value: int = 0
    name_count: int = 0

    def run(self, steps: History) -> None:
        """Run the steps, and drop everything at the end.

        Raises:
            HistoryFailed: a check, a process or the suite failed.
        """
        try:
            for kind, *numbers in steps:
                if not self.held and kind != "rest":
                    kind = "make"  # no other step is possible
                getattr(self, f"step_{kind}")(*numbers)
                if kind in CHECKED_AFTER:
                    self.verify()
            self.finish()
        except Exception as error:
            script = "\n".join(f"    {line}" for line in self.lines)
            raise HistoryFailed(error, script) from error

    def verify(self) -> None:
        """Check the values of every settled tensor."""
        for tensor in self.held:
            if tensor.model.is_settled:
                values, expected = tensor.remote.values(), tensor.model.values()
                sentence = f"{tensor.name}.values() is {expected} at the end of this"
                check.equal(values, expected, sentence)

    def finish(self) -> None:
        """Receive all messages, check all tensors and grads, and drop everything."""
        self.receive_all()
        self.verify()
        if self.grads:
            for tensor in list(self.held):
                self.hold_grads(tensor)
            self.verify()
        self.drop_all()

    def receive_all(self) -> None:
        """Receive all messages in flight."""
        for direction in sorted(self.messages):
            while self.messages[direction]:
                self.receive(direction)

    def drop_all(self) -> None:
        """Drop all tensors."""
        while self.held:
            self.held.pop().remote.drop()

    # Picking

    def pick_tensor(
        self, number: int, fits: Callable[[HeldTensor], object]
    ) -> HeldTensor | None:
        """Return one of the settled tensors that fit; None if there is none."""
        fitting = [t for t in self.held if t.model.is_settled and fits(t)]
        return fitting[number % len(fitting)] if fitting else None

    def pick_direction(self, sender: Any, number: int) -> Direction:
        """Return a direction from a process."""
        index = self.actors.index(sender)
        others = [other for other in range(len(self.actors)) if other != index]
        receiver = others[number % len(others)]
        channel = self.channels[number // len(others) % len(self.channels)]
        return Direction(index, receiver, channel)

    def new_values(self, count: int) -> list[int]:
        """Return `count` numbers that no element has had before.

        A history needs so few of them that they are exact in any dtype.
        """
        first = self.last_value + 1
        self.last_value += count
        return list(range(first, self.last_value + 1))

    def hold(self, actor: Any, remote: Any, model: TensorModel) -> str:
        """Add a tensor to the held ones, and return its name.

        If the same object is held already, such as a grad that was read twice, the new
        name replaces the old one.

        Raises:
            CheckFailed: `remote` is not a tensor.
        """
        name = f"t{self.name_count}"
        check(isinstance(remote, Remote), f"{name} is a tensor")
        self.held = [
            one for one in self.held if not one.remote.is_same_reference_as(remote)
        ]
        self.name_count += 1
        self.held.append(HeldTensor(name, actor, remote, model))
        return name

    # Steps

    def step_rest(self, _: int, __: int, ___: int) -> None:
        """Do nothing."""

    def step_make(self, process_number: int, length_number: int, _: int) -> None:
        """Let a process make a tensor."""
        if len(self.held) >= MAX_HELD:
            return
        actor = self.actors[process_number % len(self.actors)]
        values = self.new_values(3 + length_number % 4)
        name = self.hold(
            actor,
            actor.make(values),
            TensorModel(StorageModel(list(values)), list(range(len(values)))),
        )
        self.lines.append(f"{name} = {actor.name}.make({values})")

    def step_write(self, tensor_number: int, index_number: int, _: int) -> None:
        """Let a process write one element."""
        if tensor := self.pick_tensor(tensor_number, lambda t: True):
            index = index_number % len(tensor.model.indices)
            (value,) = self.new_values(1)
            self.lines.append(f"{tensor.name}.write({index}, {value})")
            tensor.remote.write(index, value)
            tensor.model.storage.values[tensor.model.indices[index]] = value

    def step_share(self, tensor_number: int, _: int, __: int) -> None:
        """Let a process share a tensor; its grad may be shared with it or not."""
        if tensor := self.pick_tensor(tensor_number, lambda t: True):
            self.lines.append(f"{tensor.name}.share()")
            tensor.remote.share()
            tensor.model.storage.has_moved = True

    def step_clone(self, tensor_number: int, _: int, __: int) -> None:
        """Let a process clone a tensor, which copies its values to another storage."""
        tensor = self.pick_tensor(tensor_number, lambda t: len(self.held) < MAX_HELD)
        if tensor:
            values = tensor.model.values()
            model = TensorModel(StorageModel(values), list(range(len(values))))
            name = self.hold(tensor.actor, tensor.remote.clone(), model)
            self.lines.append(f"{name} = {tensor.name}.clone()")

    def step_view(
        self, tensor_number: int, start_number: int, stride_number: int
    ) -> None:
        """Let a process make a view: all elements from an offset, or every second."""
        tensor = self.pick_tensor(
            tensor_number, lambda t: t.model.is_whole and len(self.held) < MAX_HELD
        )
        if tensor:
            indices = tensor.model.indices
            start = start_number % max(len(indices) - 1, 1)
            stride = 1 + stride_number % 2 if self.strided_views else 1
            viewed = indices[start::stride]
            layout = Layout("window", start, (len(viewed),), (stride,))
            remote = tensor.remote.view(layout)
            model = TensorModel(tensor.model.storage, viewed)
            name = self.hold(tensor.actor, remote, model)
            self.lines.append(f"{name} = {tensor.name}.view({layout})")

    def step_drop(self, tensor_number: int, _: int, __: int) -> None:
        """Let a process drop a tensor. Other tensors and messages keep their values."""
        tensor = self.pick_tensor(
            tensor_number,
            lambda t: self.may_drop_early or not self.has_other_holders(t),
        )
        if tensor:
            self.lines.append(f"{tensor.name}.drop()")
            self.held.remove(tensor)
            tensor.remote.drop()

    def has_other_holders(self, tensor: HeldTensor) -> bool:
        """Return whether another process or a message has the tensor's storage."""
        storage = tensor.model.storage
        holders = {id(t.actor) for t in self.held if t.model.storage is storage}
        return storage.in_flight > 0 or len(holders) > 1

    def step_set_grad(self, tensor_number: int, _: int, __: int) -> None:
        """Let a process set the grad of a tensor without one.

        The storage of the tensor must not be in flight.
        """
        tensor = self.pick_tensor(
            tensor_number, lambda t: not t.model.grad and not t.model.storage.in_flight
        )
        if tensor and len(self.held) < MAX_HELD:
            values = self.new_values(len(tensor.model.indices))
            grad = tensor.actor.make(values)
            model = TensorModel(StorageModel(list(values)), list(range(len(values))))
            name = self.hold(tensor.actor, grad, model)
            self.lines.append(f"{name} = {tensor.actor.name}.make({values})")
            self.lines.append(f"{tensor.name}.set_grad({name})")
            tensor.remote.set_grad(grad)
            tensor.model.grad = model

    def step_clear_grad(self, tensor_number: int, _: int, __: int) -> None:
        """Let a process set the grad of a tensor to None.

        Tensors of other processes keep theirs.
        """
        tensor = self.pick_tensor(
            tensor_number, lambda t: t.model.grad and not t.model.storage.in_flight
        )
        if tensor:
            self.lines.append(f"{tensor.name}.set_grad(None)")
            tensor.remote.set_grad(None)
            tensor.model.grad = None

    def step_take_grad(self, tensor_number: int, _: int, __: int) -> None:
        """Let a process read the grad of a tensor, which may have arrived with it."""
        if tensor := self.pick_tensor(
            tensor_number, lambda t: len(self.held) < MAX_HELD
        ):
            self.hold_grad(tensor)

    def hold_grads(self, tensor: HeldTensor) -> None:
        """Read the grad of a tensor, the grad of the grad, and so on."""
        while tensor.model.grad:
            self.hold_grad(tensor)
            tensor = self.held[-1]
        self.hold_grad(tensor)

    def hold_grad(self, tensor: HeldTensor) -> None:
        """Check whether a tensor has a grad, as in the model, and hold the grad."""
        grad, model = tensor.remote.grad(), tensor.model.grad
        sentence = f"{tensor.name} has {'a' if model else 'no'} grad at the end of this"
        check.equal(grad is not None, model is not None, sentence)
        if model:
            name = self.hold(tensor.actor, grad, model)
            self.lines.append(f"{name} = {tensor.name}.grad()")

    # Messages

    def step_put(
        self, tensor_number: int, direction_number: int, thread_number: int
    ) -> None:
        """Let a process put a tensor on a channel."""
        if tensor := self.pick_tensor(tensor_number, lambda t: True):
            direction = self.pick_direction(tensor.actor, direction_number)
            self.put([tensor], direction, is_in_a_thread(thread_number))

    def step_send(
        self, tensor_number: int, direction_number: int, thread_number: int
    ) -> None:
        """Let a process put a tensor, and receive the oldest message of the channel."""
        if tensor := self.pick_tensor(tensor_number, lambda t: True):
            direction = self.pick_direction(tensor.actor, direction_number)
            if self.put([tensor], direction, is_in_a_thread(thread_number)):
                self.receive(
                    direction, is_in_a_thread(thread_number // THREAD_INTERVAL)
                )

    def step_send_two(
        self, first_number: int, second_number: int, direction_number: int
    ) -> None:
        """Let a process send two tensors in one message."""
        if first := self.pick_tensor(first_number, lambda t: True):
            second = self.pick_tensor(
                second_number, lambda t: t.actor is first.actor and t is not first
            )
            direction = self.pick_direction(first.actor, direction_number)
            if second and self.put([first, second], direction):
                self.receive(direction)

    def step_get(self, direction_number: int, thread_number: int, _: int) -> None:
        """Let a process receive a message that is in flight."""
        directions = sorted(
            direction for direction, messages in self.messages.items() if messages
        )
        if directions:
            direction = directions[direction_number % len(directions)]
            self.receive(direction, is_in_a_thread(thread_number))

    def put(
        self,
        tensors: list[HeldTensor],
        direction: Direction,
        in_a_thread: bool = False,
    ) -> bool:
        """Put a message on a channel, unless too many are in flight.

        Returns whether it was put.
        """
        if sum(map(len, self.messages.values())) >= MAX_IN_FLIGHT:
            return False
        sender = self.actors[direction.sender]
        receiver = self.actors[direction.receiver]
        is_list = len(tensors) > 1
        names = ", ".join(tensor.name for tensor in tensors)
        text = f"[{names}]" if is_list else names
        put = "put_in_a_thread" if in_a_thread else "put"
        call = f'{put}({text}, {receiver.name}, "{direction.channel}")'
        self.lines.append(f"{sender.name}.{call}")
        remotes = [tensor.remote for tensor in tensors]
        payload = remotes if is_list else remotes[0]
        getattr(sender, put)(payload, receiver, direction.channel)
        received: dict[int, TensorModel] = {}
        models = [tensor.model.as_received(received) for tensor in tensors]
        for model in models:
            for storage in model.storages():
                storage.in_flight += 1
        self.messages.setdefault(direction, deque()).append(Message(models, is_list))
        return True

    def receive(self, direction: Direction, in_a_thread: bool = False) -> None:
        """Receive the oldest message of a direction, and hold its tensors."""
        sender = self.actors[direction.sender]
        receiver = self.actors[direction.receiver]
        message = self.messages[direction].popleft()
        first = self.name_count
        names = [f"t{first + index}" for index in range(len(message.tensors))]
        get = "get_in_a_thread" if in_a_thread else "get"
        call = f'{receiver.name}.{get}({sender.name}, "{direction.channel}")'
        self.lines.append(f"{', '.join(names)} = {call}")
        payload = getattr(receiver, get)(sender, direction.channel)
        remotes = payload if message.is_list else [payload]
        is_whole = isinstance(remotes, list) and len(remotes) == len(names)
        check(is_whole, f"a message of {len(names)} tensors arrives as it was sent")
        for remote, model in zip(remotes, message.tensors, strict=True):
            self.hold(receiver, remote, model)
            for storage in model.storages():
                storage.in_flight -= 1
                storage.has_moved = True


class AliasingRunner:
    """Runs histories in the processes of a stage.

    They are those of the case at first. After a failure other than a wrong value, new
    processes replace them.
    """

    def __init__(self, stage: Any, grads: bool) -> None:
        self.stage = stage
        self.grads = grads
        self.actors = self._start(stage)
        self.exit_stack = ExitStack()
        self.has_hung = False

    def _start(self, stage: Any) -> tuple[Any, ...]:
        actors = (stage.owner, stage.peer, stage.bystander)
        for actor in actors:  # before there is a tensor that it could inherit
            actor.ensure_started()
        return actors

    def renew(self) -> None:
        """Start new processes, on an isolated stage."""
        self.exit_stack.close()
        stage = self.exit_stack.enter_context(self.stage.fresh())
        self.actors = self._start(stage)
        if self.has_hung:
            stage.timeouts.shorten()

    def run(self, steps: History) -> HistoryFailed | None:
        """Run a history; return its failure, or None if it did not fail."""
        implementation = self.stage.implementation
        history = AliasingHistory(
            self.actors,
            implementation.channels,
            may_drop_early="lifetime" in implementation.claims,
            grads=self.grads,
            strided_views="steps" in implementation.views,
        )
        try:
            history.run(steps)
        except HistoryFailed as failed:
            self.recover(history, failed)
            return failed
        return None

    def recover(self, history: AliasingHistory, failed: HistoryFailed) -> None:
        """Clean up after a failed check; after any other failure, start new processes.

        New processes are also started if the cleanup fails.
        """
        if isinstance(failed.error, CheckFailed):
            with suppress(*HARNESS_ERRORS):
                history.receive_all()
                history.drop_all()
                return
        self.has_hung |= isinstance(failed.error, DeadlineExceeded)
        self.renew()


def kinds_for(claims: frozenset[str], grads: bool) -> list[str]:
    """Return the kinds of steps whose profiles are claimed, and `FREQUENT`."""
    kinds = [
        kind
        for kind, profile in PROFILE_OF_STEP.items()
        if profile in claims and (grads or profile != "grad")
    ]
    return [*kinds, *FREQUENT]


def run_histories(stage: Any, kinds: list[str], count: int, seed: int) -> None:
    """Run `count` histories of these kinds of steps.

    Raises:
        CheckFailed, ActorDied, DeadlineExceeded, HarnessFault: a history failed. The
            message contains the shortest failing one that was found.
    """
    runner = AliasingRunner(stage, "take_grad" in kinds)

    def draw(rng: Random) -> History:
        drawn = rng.choices(kinds, k=rng.randint(*HISTORY_LENGTH))
        return [history_search.draw_step(rng, kind, NUMBER_LIMIT) for kind in drawn]

    with runner.exit_stack:
        history_search.search_histories(draw, runner, count, seed)
