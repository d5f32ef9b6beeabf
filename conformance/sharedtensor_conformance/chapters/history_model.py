"""Models what random histories do with processes, tensors, messages and names.

The model knows the value of each element, the tensors that alias it, the processes that
hold a storage, which messages have to arrive, and what has to be gone. In the model a
storage is a list of numbers, and a tensor is a list of indices into one, perhaps with a
grad. A tensor that was sent arrives as a tensor of the same storage. Processes,
storages, names and messages have a state, which changes as the tables of
`state_machines` say.

The model starts no process. `history_state` and `history_steps` tell a `HistoryModel`
what the real processes do, and compare them with it. A message whose sender ended
abruptly may arrive or not. Therefore the model gives ranges, such as a minimum and a
maximum number of names.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sharedtensor_conformance.chapters.state_machines import (
    MESSAGE,
    NAME,
    PROCESS,
    STORAGE,
    Machine,
)

NAMED_STRATEGY = "file_system"
"""The strategy whose segments have names."""

LAST_REFERENCE_EVENT = {
    "dropped": "last reference dropped",
    "holder exited": "last holder exited",
    "holder was killed": "last holder was killed",
}
"""Maps the end of a tensor to the event if nothing else refers to its storage."""

ABRUPT_ENDS_BUT_KILL = ("by os._exit", "by SIGTERM", "by an exception")
"""How a process ends abruptly, except by SIGKILL, for which there is another step.

After an abrupt end, messages that the process put may be lost. `HistoryModel` calls an
end by SIGKILL `killed`, and a normal exit `exited`.
"""

SENDER_EVENTS = frozenset({"sender exited", "sender ended abruptly"})
"""Events of a message that the end of its sender causes."""

MAX_IN_FLIGHT = 6
"""Messages that one channel may contain before a process has to receive one.

A bounded queue has its own limit instead.
"""

CHANNEL_CAPACITY = 16 << 10
"""Bytes that a channel of any kind takes before a process has to read."""

BOUNDS = {"queue_of_two": 2, "joinable_queue_of_three": 3}
"""How many messages the bounded kinds of channels can contain."""

BLOCKING_CHANNELS = ("simple_queue", "pipe")
"""Kinds of channels on which `put` waits until there is room for the message."""

TransitionCounts = Counter[tuple[str, str, str]]
"""How often each transition was taken, by machine, state and event."""


class StatefulModel:
    """An object of the model, with the state of its machine.

    Attributes:
        state: the current state.
        clauses: the clauses that say what must hold in this state.
        events: all events so far.
    """

    def __init__(self, machine: Machine, transitions: TransitionCounts) -> None:
        self._machine = machine
        self._transitions = transitions
        self.state = machine.first
        self.clauses: tuple[str, ...] = ()
        self.events: list[str] = []

    def apply(self, event: str, *, keep_clauses: bool = False) -> None:
        """Change to the state that follows an event.

        With `keep_clauses`, the clauses of earlier events stay in force.

        Raises:
            ImpossibleTransition: the machine has no such event in the current state.
        """
        transition = self._machine.after(self.state, event)
        before = self.clauses if keep_clauses else ()
        self.state = transition.next
        self.clauses = tuple(dict.fromkeys((*before, *transition.clauses)))
        self._transitions[self._machine.name, transition.state, event] += 1
        self.events.append(event)


class ProcessModel(StatefulModel):
    """A process, with its actor and the strategy by which it shares storages."""

    def __init__(
        self, name: str, strategy: str, transitions: TransitionCounts, actor: Any
    ) -> None:
        super().__init__(PROCESS, transitions)
        self.name = name
        self.strategy = strategy
        self.actor = actor

    @property
    def is_running(self) -> bool:
        """Whether it can take a step: it has not ended and waits in no call."""
        return self.state == "running"


class StorageModel(StatefulModel):
    """A storage, with its values and the messages that carry it.

    Args:
        values: the values of its elements; of a long storage, the first ones.
        maker: the process that made it.
        transitions: the counts of all transitions.
        is_long: whether it has more elements than `values`.

    Attributes:
        has_moved: whether it is in a segment for certain, and no longer moves.
        moved_by: identifies the call that moved it into a segment.
        name: the state of its name in ``/dev/shm``.
    """

    def __init__(
        self,
        values: Iterable[int],
        maker: ProcessModel,
        transitions: TransitionCounts,
        is_long: bool = False,
    ) -> None:
        super().__init__(STORAGE, transitions)
        self.values = list(values)
        self.is_long = is_long
        self.maker = maker
        self.has_moved = False
        self.name = StatefulModel(NAME, transitions)
        self.moved_by: object = self
        self.messages: list[MessageModel] = []

    @property
    def is_shared(self) -> bool:
        """Whether it is in the state `shared`."""
        return self.state == "shared"

    @property
    def is_settled(self) -> bool:
        """Whether no `put` can still be moving it into a segment.

        An implementation that breaks clause CHAN-7 may move a storage after `put` has
        returned, until the message arrives. Other tests judge that clause.
        """
        return self.has_moved or not self.messages

    @property
    def has_name(self) -> bool:
        """Whether a file in ``/dev/shm`` belongs to it."""
        return self.name.state in ("there", "unwatched")

    def apply_to_name(self, event: str) -> None:
        """Change the state of its name, if it has one."""
        if self.has_name:
            self.name.apply(event)

    def move(self, event: str, strategy: str, by: object = None) -> None:
        """Move into a segment, or stay there.

        Storages that were moved `by` the same call may have one file in common.
        """
        self.apply_to_name("sent")
        if self.state == "private" and strategy == NAMED_STRATEGY:
            self.name.apply("shared")
            self.moved_by = by or self
        self.apply(event)


@dataclass(eq=False)
class TensorModel:
    """A tensor: the indices of its elements in a storage, and its grad."""

    storage: StorageModel
    indices: list[int]
    grad: TensorModel | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it has all elements of the storage, in their order."""
        is_long = self.storage.is_long
        return not is_long and self.indices == list(range(len(self.storage.values)))

    @property
    def values(self) -> list[int]:
        """The values that it must have; a long one has zeros after them."""
        return [self.storage.values[index] for index in self.indices]

    def as_received(self, message: dict[int, TensorModel]) -> TensorModel:
        """Return the tensor that arrives when this one is sent.

        `message` maps the identity of each sent tensor of the same message to the
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


@dataclass(eq=False)
class HeldTensor:
    """A tensor in a process, with its name in the script.

    It is `pinned` if it is one of the arguments of the process, which are never
    dropped.
    """

    name: str
    process: ProcessModel
    remote: Any
    tensor: TensorModel
    pinned: bool = False

    @property
    def storage(self) -> StorageModel:
        """The storage of the tensor."""
        return self.tensor.storage

    @property
    def is_settled(self) -> bool:
        """Whether a step may use it: none of its storages is about to move."""
        return all(storage.is_settled for storage in self.tensor.storages())


class MessageModel(StatefulModel):
    """A message: its number, its sender, its tensors and its bytes of padding."""

    def __init__(
        self,
        number: int,
        sender: ProcessModel,
        tensors: list[TensorModel],
        size: int,
        transitions: TransitionCounts,
    ) -> None:
        super().__init__(MESSAGE, transitions)
        self.number = number
        self.sender = sender
        self.tensors = tensors
        self.storages = storages_of(tensors)
        self.size = size

    def apply_in_flight(self, event: str) -> None:
        """Change to the state that follows an event while the message is in flight.

        After the end of its sender, the clauses about that stay in force.
        """
        of_sender = self.clauses if SENDER_EVENTS & set(self.events) else ()
        self.apply(event)
        self.clauses = of_sender or self.clauses


class ChannelModel:
    """A channel, with its proxy.

    Args:
        kind: its kind, one that the harness can open.
        proxy: puts and gets in the processes.
        ends: its only sender and its only receiver; None if every process has it.

    Attributes:
        messages: the messages in it, in the order in which they were put.
        unfinished: how many messages still need a call of `task_done()`.
        count_is_known: false when a message may have been lost. The number of messages
            in the channel is then unknown.
    """

    def __init__(
        self,
        kind: str,
        proxy: Any = None,
        ends: tuple[ProcessModel, ProcessModel] | None = None,
    ) -> None:
        self.kind = self.name = kind
        self.proxy = proxy
        self.sender: ProcessModel | None = None
        self.receiver: ProcessModel | None = None
        if ends:
            self.sender, self.receiver = ends
            self.name = f"{kind} from {self.sender.name} to {self.receiver.name}"
        self.bound = BOUNDS.get(kind, 0)
        self.is_joinable = kind.startswith("joinable")
        self.is_queue = not ends and kind not in BLOCKING_CHANNELS
        self.messages: deque[MessageModel] = deque()
        self.unfinished = 0
        self.count_is_known = True

    @property
    def is_full(self) -> bool:
        """Whether it is bounded and full, so that it refuses the next message."""
        return bool(self.bound) and len(self.messages) >= self.bound

    @property
    def certain(self) -> list[MessageModel]:
        """The messages in it that have to arrive."""
        return [one for one in self.messages if one.state == "in flight"]

    @property
    def uncertain(self) -> list[MessageModel]:
        """The messages in it that may be lost."""
        return [one for one in self.messages if one.state == "uncertain"]

    @property
    def total_size(self) -> int:
        """The bytes of padding in all its messages."""
        return sum(message.size for message in self.messages)

    @property
    def can_put(self) -> bool:
        """Whether `put` returns if the channel is empty in the model.

        A message that was lost with its sender still takes a place in a bounded queue.
        """
        return self.count_is_known or not self.bound

    @property
    def is_empty(self) -> bool:
        """Whether it is empty and `put` returns."""
        return self.can_put and not self.messages

    def has_room_for(self, size: int) -> bool:
        """Return whether `put` of `size` bytes returns although no process reads."""
        if self.bound:
            return self.can_put and not self.is_full
        if len(self.messages) >= MAX_IN_FLIGHT:
            return False
        return self.is_queue or self.total_size + size <= CHANNEL_CAPACITY

    def receivable(self) -> list[MessageModel]:
        """Return the messages one of which has to be received next.

        For each sender, these are its first message that has to arrive, and the
        uncertain messages before it.
        """
        receivable, senders_done = [], set()
        for message in self.messages:
            if message.sender not in senders_done:
                receivable.append(message)
            if message.state == "in flight":
                senders_done.add(message.sender)
        return receivable


class HistoryModel:
    """All objects of the model, with a method for each event that concerns them.

    Args:
        strategy: the initial strategy of every process.

    Attributes:
        held: the tensors that the processes hold.
        name_count: how many tensors got a name.
        message_count: how many messages were put or refused. The messages have numbers
            from 1 to this.
        transitions: how often each transition was taken.
    """

    def __init__(self, strategy: str) -> None:
        self.strategy = strategy
        self.processes: list[ProcessModel] = []
        self.held: list[HeldTensor] = []
        self.storages: list[StorageModel] = []
        self.channels: list[ChannelModel] = []
        self.name_count = 0
        self.message_count = 0
        self.has_manager = True
        self.transitions: TransitionCounts = Counter()

    # Processes

    def record_start(self, name: str, actor: Any = None) -> ProcessModel:
        """Record the start of a process, and return it. It has the initial strategy."""
        process = ProcessModel(name, self.strategy, self.transitions, actor)
        self.processes.append(process)
        return process

    def running(self, *, but: ProcessModel | None = None) -> list[ProcessModel]:
        """Return the processes that can take a step, except one."""
        return [one for one in self.processes if one.is_running and one is not but]

    def record_fork(self, parent: ProcessModel) -> None:
        """Record that a process forks, while messages may be in flight."""
        parent.apply("forks")
        for message in self.in_flight():
            message.apply_in_flight("process forked")

    def record_inherited_argument(
        self, child: ProcessModel, storage: StorageModel
    ) -> TensorModel:
        """Record a tensor among the arguments of a forked child, and return it.

        It has the same storage if this is shared, and otherwise a copy.
        """
        storage.apply("inherited")
        if not storage.is_shared:
            storage = self._add_storage(storage.values, child, storage.is_long)
            storage.apply("copied by a fork")
        return _whole(storage)

    def record_passed_argument(
        self, parent: ProcessModel, child: ProcessModel, storage: StorageModel
    ) -> TensorModel:
        """Record a tensor among the arguments of a child that was not forked."""
        storage.move("given to a spawned process", parent.strategy, child)
        storage.has_moved = True
        return _whole(storage)

    def record_end(self, process: ProcessModel, how: str) -> None:
        """Record the end of a process, after which it holds nothing.

        `how` is ``exited``, ``killed`` or one of `ABRUPT_ENDS_BUT_KILL`.
        """
        waited = process.state == "waiting"
        process.apply("exits" if how == "exited" else "is killed")
        event = "holder exited" if how == "exited" else "holder was killed"
        for message in self.in_flight():
            message.apply_in_flight(_end_event(message, process, how, waited=waited))
        for held in [one for one in self.held if one.process is process]:
            self._remove(held, event, "holder ended")
        for channel in self.channels:
            channel.count_is_known &= not channel.uncertain

    def record_all_ended(self) -> None:
        """Record that all processes have ended, so that all messages are lost."""
        for message in self.in_flight():
            message.apply("everybody ended")
            self._remove_lost(message)
        for channel in self.channels:
            channel.messages.clear()

    def record_manager_kill(self) -> None:
        """Record that the manager was killed. Nothing is lost by that."""
        self.has_manager = False
        for process in self.running():
            process.apply("manager was killed")
        for message in self.in_flight():
            message.apply_in_flight("manager was killed")
        for storage in self.storages:
            if storage.is_shared:
                storage.apply("manager was killed")
            storage.apply_to_name("manager was killed")

    def record_strategy(self, process: ProcessModel, strategy: str) -> None:
        """Record that a process changes its strategy. Shared storages do not change."""
        process.strategy = strategy
        for held in self.held:
            if held.process is process and held.storage.is_shared:
                held.storage.apply("strategy changed")

    # Storages and tensors

    def _add_storage(
        self, values: Iterable[int], maker: ProcessModel, is_long: bool
    ) -> StorageModel:
        storage = StorageModel(values, maker, self.transitions, is_long)
        self.storages.append(storage)
        return storage

    def record_make(
        self, process: ProcessModel, values: Iterable[int], *, is_long: bool = False
    ) -> TensorModel:
        """Record that a process makes a tensor, and return it."""
        return _whole(self._add_storage(values, process, is_long))

    def hold(
        self,
        process: ProcessModel,
        tensor: TensorModel,
        remote: Any = None,
        *,
        pinned: bool = False,
    ) -> HeldTensor:
        """Record that a process holds a tensor under a new name, and return it."""
        self.name_count += 1
        name = f"t{self.name_count}"
        self.held.append(HeldTensor(name, process, remote, tensor, pinned))
        return self.held[-1]

    def record_write(self, tensor: TensorModel, index: int, value: int) -> None:
        """Record that a process writes one element."""
        tensor.storage.apply("written", keep_clauses=True)
        tensor.storage.values[tensor.indices[index]] = value

    def record_share(self, storage: StorageModel, strategy: str) -> None:
        """Record that a process shares a tensor of a storage."""
        storage.move("shared", strategy)
        storage.has_moved = True

    def record_drop(self, held: HeldTensor) -> None:
        """Record that a process drops a tensor."""
        for message in held.storage.messages:
            if message.sender is held.process:
                message.apply("sender dropped")
        self._remove(held, "dropped", "holder dropped")

    def record_grad(self, tensor: TensorModel, grad: TensorModel | None) -> None:
        """Record that a process sets the grad of a tensor, or clears it."""
        before, tensor.grad = tensor.grad, grad
        for storage in storages_of([before] if before else []):
            self._lose_reference(storage, "dropped", "holder dropped")

    def _remove(self, held: HeldTensor, event: str, name_event: str) -> None:
        """Remove a tensor, and its storages if nothing else refers to them.

        `event` is an event of the storage, and `name_event` one of its name.
        """
        self.held.remove(held)
        for storage in storages_of([held.tensor]):
            self._lose_reference(storage, event, name_event)

    def _lose_reference(
        self, storage: StorageModel, event: str, name_event: str
    ) -> None:
        is_held = self._is_held(storage)
        is_last = not is_held and not storage.messages
        if is_last:
            event = LAST_REFERENCE_EVENT[event]
            name_event = f"last {name_event}"
        elif event == "dropped" and not is_held:
            event = "dropped in flight"
        if is_last or storage.is_shared:
            storage.apply(event)
        storage.apply_to_name(name_event)
        if is_last:
            self.storages.remove(storage)

    def _is_held(self, storage: StorageModel) -> bool:
        return any(storage in one.tensor.storages() for one in self.held)

    # Messages

    def in_flight(self) -> Iterator[MessageModel]:
        """Yield the messages in all channels."""
        for channel in self.channels:
            yield from list(channel.messages)

    def record_put(
        self,
        tensors: list[TensorModel],
        sender: ProcessModel,
        channel: ChannelModel,
        size: int = 0,
    ) -> MessageModel:
        """Record that a process puts a message, and return it.

        If the channel is full, the message is refused and moves no storage.
        """
        self.message_count += 1
        sent: dict[int, TensorModel] = {}
        arriving = [one.as_received(sent) for one in tensors]
        number = self.message_count
        message = MessageModel(number, sender, arriving, size, self.transitions)
        if channel.is_full:
            message.apply("refused")
            return message
        for storage in message.storages:
            event = "sent" if storage.maker is sender else "sent on"
            storage.move(event, sender.strategy, message)
            storage.messages.append(message)
        message.apply("put")
        channel.messages.append(message)
        channel.unfinished += channel.is_joinable
        return message

    def record_receive(
        self, channel: ChannelModel, message: MessageModel
    ) -> list[TensorModel]:
        """Record that a process receives a message, and return its tensors.

        Earlier messages of the same sender are all uncertain, and are lost now.
        """
        for earlier in list(channel.messages):
            if earlier is message:
                break
            if earlier.sender is message.sender:
                self.record_loss(channel, earlier)
        channel.messages.remove(message)
        message.apply("received")
        for storage in message.storages:
            storage.messages.remove(message)
            storage.has_moved = True
            storage.apply("received")
            storage.apply_to_name("received")
        return message.tensors

    def record_loss(self, channel: ChannelModel, message: MessageModel) -> None:
        """Record that a message whose sender ended abruptly is lost."""
        channel.messages.remove(message)
        message.apply("found missing")
        self._remove_lost(message)

    def _remove_lost(self, message: MessageModel) -> None:
        """Remove a lost message, and storages that nothing else refers to."""
        for storage in message.storages:
            storage.messages.remove(message)
            if storage.messages or self._is_held(storage):
                storage.apply("message was lost")
            else:
                storage.apply("last holder was killed")
                storage.apply_to_name("last message was lost")
                self.storages.remove(storage)

    # What the processes are compared with

    def name_range(self) -> tuple[int, int]:
        """Return the minimum and the maximum number of names.

        Storages that one call has moved may have one name in common: clause LIFE-26.
        """
        named = [one for one in self.storages if one.has_name]
        certain = [one for one in named if one.has_moved and self._must_stay(one)]
        return len({id(one.moved_by) for one in certain}), len(named)

    def _must_stay(self, storage: StorageModel) -> bool:
        certain = any(one.state == "in flight" for one in storage.messages)
        return certain or self._is_held(storage)

    def clauses_of_names(self) -> tuple[str, ...]:
        """Return the clauses about the names of the present storages."""
        clauses = (clause for one in self.storages for clause in one.name.clauses)
        return (*dict.fromkeys(clauses), "LIFE-17")


def storages_of(tensors: Iterable[TensorModel]) -> list[StorageModel]:
    """Return the storages of tensors and their grads, each of them once."""
    return list(dict.fromkeys(s for tensor in tensors for s in tensor.storages()))


def _whole(storage: StorageModel) -> TensorModel:
    return TensorModel(storage, list(range(len(storage.values))))


def _end_event(
    message: MessageModel, process: ProcessModel, how: str, *, waited: bool
) -> str:
    """Return the event that the end of a process is for a message in flight."""
    if message.sender is not process or message.state == "uncertain":
        return "waiting reader was killed" if waited else "process ended"
    return "sender exited" if how == "exited" else "sender ended abruptly"
