"""Models the lifetimes of storages and messages in random histories with deaths.

The model of `aliasing_histories` knows only the value of each element. This one also
knows which processes hold a storage, which messages have to arrive, and what has to be
gone. It consists of processes, tensors, storages, names, channels and messages.
Processes, storages, names and messages have a state, which changes as the tables of
`state_machines` say.

The model starts no process. `lifetime_base` and its subclasses tell a `LifetimeModel`
what the real processes do, and compare them with it. A message whose sender ended
abruptly may arrive or not. Therefore the model gives ranges, such as a minimum and a
maximum number of names.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

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
"""Abrupt ends other than by SIGKILL, which has a step of its own."""

ABRUPT_ENDS = ("killed", *ABRUPT_ENDS_BUT_KILL)
"""Ways to end after which messages that the process put may be lost.

The other way to end is a normal exit, `exited`.
"""


SENDER_EVENTS = frozenset({"sender exited", "sender ended abruptly"})
"""Events of a message that the end of its sender causes."""


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
    """A process, with the strategy by which it shares private storages."""

    def __init__(self, name: str, strategy: str, transitions: TransitionCounts) -> None:
        super().__init__(PROCESS, transitions)
        self.name = name
        self.strategy = strategy

    @property
    def is_running(self) -> bool:
        """Whether it can take a step: it has not ended and waits in no call."""
        return self.state == "running"


class StorageModel(StatefulModel):
    """A storage, with its values, its tensors and the messages that carry it.

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
        self.tensors: list[TensorModel] = []
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

    def move(self, event: str, strategy: str, by: object = None) -> None:
        """Move into a segment, or stay there.

        Storages that were moved `by` the same call may have one file in common.
        """
        if self.state == "private" and strategy == NAMED_STRATEGY:
            self.name.apply("shared")
            self.moved_by = by or self
        elif self.name.state in ("there", "unwatched"):
            self.name.apply("sent")
        self.apply(event)


@dataclass(eq=False)
class TensorModel:
    """A tensor in a process.

    Args:
        process: the process that holds the tensor.
        storage: the storage of the tensor.
        pinned: whether the tensor is one of the arguments of the process, which are
            never dropped.
    """

    process: ProcessModel
    storage: StorageModel
    pinned: bool = False


class MessageModel(StatefulModel):
    """A message, with its number, its sender, its storages and its bytes of padding."""

    def __init__(
        self,
        number: int,
        sender: ProcessModel,
        storages: list[StorageModel],
        size: int,
        transitions: TransitionCounts,
    ) -> None:
        super().__init__(MESSAGE, transitions)
        self.number = number
        self.sender = sender
        self.storages = storages
        self.size = size

    def apply_in_flight(self, event: str) -> None:
        """Change to the state that follows an event while the message is in flight.

        After the end of its sender, the clauses about that stay in force.
        """
        of_sender = self.clauses if SENDER_EVENTS & set(self.events) else ()
        self.apply(event)
        self.clauses = of_sender or self.clauses


@dataclass
class ChannelModel:
    """A channel, which every process has.

    Args:
        kind: its kind, one that the harness can open.
        bound: the number of messages that it can contain; 0 for any number.
        is_joinable: whether it counts unfinished tasks.
        messages: the messages in it, in the order in which they were put.
        unfinished: how many messages still need a call of `task_done()`.
    """

    kind: str
    bound: int = 0
    is_joinable: bool = False
    messages: deque[MessageModel] = field(default_factory=deque)
    unfinished: int = 0

    @property
    def is_full(self) -> bool:
        """Whether it is bounded and full, so that it refuses the next message."""
        return bool(self.bound) and len(self.messages) >= self.bound

    @property
    def certain(self) -> list[MessageModel]:
        """The messages in it that have to arrive."""
        return [one for one in self.messages if one.state == "in flight"]

    @property
    def has_uncertain(self) -> bool:
        """Whether it contains a message that may be lost."""
        return len(self.certain) < len(self.messages)

    @property
    def total_size(self) -> int:
        """The bytes of padding in all its messages."""
        return sum(message.size for message in self.messages)

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


class LifetimeModel:
    """All objects of the model, with a method for each event that concerns them.

    Args:
        strategy: the initial strategy of every process.

    Attributes:
        message_count: how many messages were put or refused. The messages have numbers
            from 1 to this.
        transitions: how often each transition was taken.
    """

    def __init__(self, strategy: str) -> None:
        self.strategy = strategy
        self.processes: list[ProcessModel] = []
        self.tensors: list[TensorModel] = []
        self.storages: list[StorageModel] = []
        self.channels: list[ChannelModel] = []
        self.message_count = 0
        self.has_manager = True
        self.transitions: TransitionCounts = Counter()

    # Processes

    def record_start(self, name: str) -> ProcessModel:
        """Record the start of a process, and return it. It has the initial strategy."""
        process = ProcessModel(name, self.strategy, self.transitions)
        self.processes.append(process)
        return process

    def running(self) -> list[ProcessModel]:
        """Return the processes that can take a step."""
        return [one for one in self.processes if one.is_running]

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
        return self.add_tensor(child, storage, pinned=True)

    def record_passed_argument(
        self, parent: ProcessModel, child: ProcessModel, storage: StorageModel
    ) -> TensorModel:
        """Record a tensor among the arguments of a child that was not forked."""
        storage.move("given to a spawned process", parent.strategy, child)
        storage.has_moved = True
        return self.add_tensor(child, storage, pinned=True)

    def record_end(self, process: ProcessModel, how: str) -> None:
        """Record the end of a process.

        `how` is ``"exited"`` or one of `ABRUPT_ENDS`.
        """
        waited = process.state == "waiting"
        process.apply("exits" if how == "exited" else "is killed")
        event = "holder exited" if how == "exited" else "holder was killed"
        for message in self.in_flight():
            message.apply_in_flight(_end_event(message, process, how, waited=waited))
        for tensor in self.tensors_of(process):
            self._remove_tensor(tensor, event, "holder ended")

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
            if storage.name.state in ("there", "unwatched"):
                storage.name.apply("manager was killed")

    def record_strategy(self, process: ProcessModel, strategy: str) -> None:
        """Record that a process changes its strategy. Shared storages do not change."""
        process.strategy = strategy
        for tensor in self.tensors_of(process):
            if tensor.storage.is_shared:
                tensor.storage.apply("strategy changed")

    # Storages

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
        return self.add_tensor(process, self._add_storage(values, process, is_long))

    def add_tensor(
        self, process: ProcessModel, storage: StorageModel, *, pinned: bool = False
    ) -> TensorModel:
        """Add a tensor of a process over a storage, and return it."""
        tensor = TensorModel(process, storage, pinned)
        self.tensors.append(tensor)
        storage.tensors.append(tensor)
        return tensor

    def tensors_of(self, process: ProcessModel) -> list[TensorModel]:
        """Return the tensors of a process."""
        return [one for one in self.tensors if one.process is process]

    def record_write(self, tensor: TensorModel, index: int, value: int) -> None:
        """Record that a process writes one element."""
        tensor.storage.apply("written", keep_clauses=True)
        tensor.storage.values[index] = value

    def record_share(self, tensor: TensorModel) -> None:
        """Record that a process shares a tensor."""
        tensor.storage.move("shared", tensor.process.strategy)
        tensor.storage.has_moved = True

    def record_drop(self, tensor: TensorModel) -> None:
        """Record that a process drops a tensor."""
        for message in tensor.storage.messages:
            if message.sender is tensor.process:
                message.apply("sender dropped")
        self._remove_tensor(tensor, "dropped", "holder dropped")

    def _remove_tensor(self, tensor: TensorModel, event: str, name_event: str) -> None:
        """Remove a tensor, and the storage if nothing else refers to it.

        `event` is an event of the storage, and `name_event` one of its name.
        """
        storage = tensor.storage
        self.tensors.remove(tensor)
        storage.tensors.remove(tensor)
        is_last = not storage.tensors and not storage.messages
        if is_last:
            event = LAST_REFERENCE_EVENT[event]
            name_event = f"last {name_event}"
        elif event == "dropped" and not storage.tensors:
            event = "dropped in flight"
        if is_last or storage.is_shared:
            storage.apply(event)
        if storage.name.state in ("there", "unwatched"):
            storage.name.apply(name_event)
        if is_last:
            self.storages.remove(storage)

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
        storages = [one.storage for one in tensors]
        message = MessageModel(
            self.message_count, sender, storages, size, self.transitions
        )
        if channel.is_full:
            message.apply("refused")
            return message
        for storage in storages:
            event = "sent" if storage.maker is sender else "sent on"
            storage.move(event, sender.strategy, message)
        message.apply("put")
        channel.messages.append(message)
        channel.unfinished += channel.is_joinable
        for storage in storages:
            storage.messages.append(message)
        return message

    def record_receive(
        self, process: ProcessModel, channel: ChannelModel, message: MessageModel
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
        tensors = [self.add_tensor(process, storage) for storage in message.storages]
        for storage in message.storages:
            storage.messages.remove(message)
            storage.has_moved = True
            storage.apply("received")
            if storage.name.state in ("there", "unwatched"):
                storage.name.apply("received")
        return tensors

    def record_loss(self, channel: ChannelModel, message: MessageModel) -> None:
        """Record that a message whose sender ended abruptly is lost."""
        channel.messages.remove(message)
        message.apply("found missing")
        self._remove_lost(message)

    def _remove_lost(self, message: MessageModel) -> None:
        """Remove a lost message, and storages that nothing else refers to."""
        for storage in message.storages:
            storage.messages.remove(message)
            is_last = not storage.tensors and not storage.messages
            storage.apply("last holder was killed" if is_last else "message was lost")
            if is_last:
                if storage.name.state in ("there", "unwatched"):
                    storage.name.apply("last message was lost")
                self.storages.remove(storage)

    # What the processes are compared with

    def name_range(self) -> tuple[int, int]:
        """Return the minimum and the maximum number of names.

        Storages that one call has moved may have one name in common: clause LIFE-26.
        """
        named = [
            one for one in self.storages if one.name.state in ("there", "unwatched")
        ]
        moved = [one for one in named if one.has_moved]
        certain = [one for one in moved if one.tensors or _has_certain_message(one)]
        return len({id(one.moved_by) for one in certain}), len(named)

    def clauses_of_names(self) -> tuple[str, ...]:
        """Return the clauses about the names of the present storages."""
        clauses = (clause for one in self.storages for clause in one.name.clauses)
        return (*dict.fromkeys(clauses), "LIFE-17")


def _has_certain_message(storage: StorageModel) -> bool:
    return any(message.state == "in flight" for message in storage.messages)


def _end_event(
    message: MessageModel, process: ProcessModel, how: str, *, waited: bool
) -> str:
    """Return the event that the end of a process is for a message in flight."""
    if message.sender is not process or message.state == "uncertain":
        return "waiting reader was killed" if waited else "process ended"
    return "sender exited" if how == "exited" else "sender ended abruptly"
