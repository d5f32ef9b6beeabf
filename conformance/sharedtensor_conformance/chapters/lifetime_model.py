"""Models the lifetimes of storages and messages in random histories with deaths.

The model of `aliasing_histories` knows only the value of each element. This one also
knows which processes hold a storage, which messages have to arrive, and what has to be
gone. It consists of processes, storages, names, channels and messages. All of them
except the channels have a state, which changes as the tables of `state_machines` say.

The model starts no process. `lifetime_base` and its subclasses tell a `World` what
the real processes do, and compare them with it. A message whose sender ended abruptly
may arrive or not. Therefore the model gives ranges, such as a minimum and a maximum
number of names.
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

NAMED = "file_system"
"""The strategy whose segments have names."""

LAST = {
    "dropped": "last reference dropped",
    "holder exited": "last holder exited",
    "holder was killed": "last holder was killed",
}
"""Maps each event that removes a reference to the event that removes the last one."""

ABRUPT = ("killed", "by os._exit", "by SIGTERM", "by an exception")
"""Ways to end after which messages that the process put may be lost.

The other way to end is a normal exit, `exited`.
"""


OF_THE_SENDER = frozenset({"sender exited", "sender ended abruptly"})
"""Events of a message that the end of its sender causes."""


Taken = Counter[tuple[str, str, str]]
"""How often each transition was taken, by machine, state and event."""


class Thing:
    """An object of the model, with the state of its machine.

    Attributes:
        state: the current state.
        clauses: the clauses that say what must hold in this state.
        events: all events so far.
    """

    def __init__(self, machine: Machine, taken: Taken) -> None:
        self._machine = machine
        self._taken = taken
        self.state = machine.first
        self.clauses: tuple[str, ...] = ()
        self.events: list[str] = []

    def becomes(self, event: str, *, keeps: bool = False) -> None:
        """Change to the state that follows an event.

        With `keeps`, the clauses of earlier events stay in force.

        Raises:
            Impossible: the machine has no such event in the current state.
        """
        transition = self._machine.after(self.state, event)
        before = self.clauses if keeps else ()
        self.state = transition.next
        self.clauses = tuple(dict.fromkeys((*before, *transition.clauses)))
        self._taken[self._machine.name, transition.state, event] += 1
        self.events.append(event)


class ProcessModel(Thing):
    """A process, with the strategy by which it shares private storages."""

    def __init__(
        self, name: str, strategy: str, taken: Taken, *, forked: bool = False
    ) -> None:
        super().__init__(PROCESS, taken)
        self.name = name
        self.strategy = strategy
        self.forked = forked

    @property
    def runs(self) -> bool:
        """Whether it can take a step: it has not ended and waits in no call."""
        return self.state == "running"

    @property
    def has_ended(self) -> bool:
        """Whether it has exited or was killed."""
        return self.state in ("exited", "killed")


class StorageModel(Thing):
    """A storage, with its values, its references and the messages that carry it.

    Args:
        values: the values of its elements; of a long storage, the first ones.
        maker: the process that made it.
        taken: counts the transitions.
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
        taken: Taken,
        is_long: bool = False,
    ) -> None:
        super().__init__(STORAGE, taken)
        self.values = list(values)
        self.is_long = is_long
        self.maker = maker
        self.has_moved = False
        self.name = Thing(NAME, taken)
        self.moved_by: object = self
        self.references: list[Reference] = []
        self.messages: list[MessageModel] = []

    @property
    def is_shared(self) -> bool:
        """Whether it is in the state `shared`."""
        return self.state == "shared"

    @property
    def settled(self) -> bool:
        """Whether no `put` can still be moving it into a segment.

        An implementation that breaks clause CHAN-7 may move a storage after `put` has
        returned, until the message arrives. Other tests judge that clause.
        """
        return self.has_moved or not self.messages

    def move(self, event: str, strategy: str, by: object = None) -> None:
        """Move into a segment, or stay there.

        Storages that were moved `by` the same call may have one file in common.
        """
        if self.state == "private" and strategy == NAMED:
            self.name.becomes("shared")
            self.moved_by = by or self
        elif self.name.state in ("there", "unwatched"):
            self.name.becomes("sent")
        self.becomes(event)


@dataclass(eq=False)
class Reference:
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


class MessageModel(Thing):
    """A message, with its number, its sender, its storages and its bytes of ballast."""

    def __init__(
        self,
        number: int,
        sender: ProcessModel,
        storages: list[StorageModel],
        size: int,
        taken: Taken,
    ) -> None:
        super().__init__(MESSAGE, taken)
        self.number = number
        self.sender = sender
        self.storages = storages
        self.size = size

    def hears(self, event: str) -> None:
        """Change to the state that follows an event while the message is in flight.

        After the end of its sender, the clauses about that stay in force.
        """
        bound = self.clauses if OF_THE_SENDER & set(self.events) else ()
        self.becomes(event)
        self.clauses = bound or self.clauses


@dataclass
class ChannelModel:
    """A channel, which every process has.

    Args:
        kind: its kind, one that the harness can open.
        bound: the number of messages that it can contain; 0 for any number.
        counts: whether it is joinable, so that it counts unfinished tasks.
        waiting: the messages in it, in the order in which they were put.
        unfinished: the messages for which `task_done()` was not called.
    """

    kind: str
    bound: int = 0
    counts: bool = False
    waiting: deque[MessageModel] = field(default_factory=deque)
    unfinished: int = 0

    @property
    def is_full(self) -> bool:
        """Whether it is bounded and full, so that it refuses the next message."""
        return bool(self.bound) and len(self.waiting) >= self.bound

    @property
    def certain(self) -> list[MessageModel]:
        """The messages in it that have to arrive."""
        return [one for one in self.waiting if one.state == "in flight"]

    @property
    def has_uncertain(self) -> bool:
        """Whether it contains a message that may be lost."""
        return len(self.certain) < len(self.waiting)

    @property
    def bytes(self) -> int:
        """The bytes of ballast in all its messages."""
        return sum(one.size for one in self.waiting)

    def next_ones(self) -> list[MessageModel]:
        """Return the messages one of which has to be received next.

        For each sender, these are its first message that has to arrive, and the
        uncertain messages before it.
        """
        found, closed = [], set()
        for message in self.waiting:
            if message.sender not in closed:
                found.append(message)
            if message.state == "in flight":
                closed.add(message.sender)
        return found


class World:
    """All objects of the model, with a method for each event that concerns them.

    Args:
        strategy: the initial strategy of every process.

    Attributes:
        messages: the number of the last message, which is also their count.
    """

    def __init__(self, strategy: str) -> None:
        self.strategy = strategy
        self.processes: list[ProcessModel] = []
        self.references: list[Reference] = []
        self.storages: list[StorageModel] = []
        self.channels: list[ChannelModel] = []
        self.messages = 0
        self.has_manager = True
        self.taken: Taken = Counter()

    # Processes

    def begins(
        self, name: str, strategy: str = "", *, forked: bool = False
    ) -> ProcessModel:
        """Add a process. Without `strategy` it has the initial one."""
        process = ProcessModel(
            name, strategy or self.strategy, self.taken, forked=forked
        )
        self.processes.append(process)
        return process

    def running(self) -> list[ProcessModel]:
        """Return the processes that can take a step."""
        return [one for one in self.processes if one.runs]

    def forks(self, parent: ProcessModel) -> None:
        """Record that a process forks, while messages may be in flight."""
        parent.becomes("forks")
        for message in self.in_flight():
            message.hears("process forked")

    def inherits(self, child: ProcessModel, storage: StorageModel) -> Reference:
        """Record a tensor among the arguments of a forked child, and return it.

        It has the same storage if this is shared, and otherwise a copy.
        """
        storage.becomes("inherited")
        if not storage.is_shared:
            storage = self._new_storage(storage.values, child, storage.is_long)
            storage.becomes("copied by a fork")
        return self.holds(child, storage, pinned=True)

    def is_given(
        self, parent: ProcessModel, child: ProcessModel, storage: StorageModel
    ) -> Reference:
        """Record a tensor among the arguments of a child that was not forked."""
        storage.move("given to a spawned process", parent.strategy, child)
        storage.has_moved = True
        return self.holds(child, storage, pinned=True)

    def ends(self, process: ProcessModel, how: str) -> None:
        """Record the end of a process; `how` is ``"exited"`` or one of `ABRUPT`."""
        waited = process.state == "waiting"
        process.becomes("exits" if how == "exited" else "is killed")
        event = "holder exited" if how == "exited" else "holder was killed"
        for message in self.in_flight():
            message.hears(_to_message(message, process, how, waited=waited))
        for reference in self.held_by(process):
            self._let_go(reference, event, "holder ended")

    def everybody_ended(self) -> None:
        """Record that all processes have ended, so that all messages are lost."""
        for message in self.in_flight():
            message.becomes("everybody ended")
            self._leaves(message)
        for channel in self.channels:
            channel.waiting.clear()

    def manager_was_killed(self) -> None:
        """Record that the manager was killed. Nothing is lost by that."""
        self.has_manager = False
        for process in self.running():
            process.becomes("manager was killed")
        for message in self.in_flight():
            message.hears("manager was killed")
        for storage in self.storages:
            if storage.is_shared:
                storage.becomes("manager was killed")
            if storage.name.state in ("there", "unwatched"):
                storage.name.becomes("manager was killed")

    def changes_strategy(self, process: ProcessModel, strategy: str) -> None:
        """Record that a process changes its strategy. Shared storages do not change."""
        process.strategy = strategy
        for reference in self.held_by(process):
            if reference.storage.is_shared:
                reference.storage.becomes("strategy changed")

    # Storages

    def _new_storage(
        self, values: Iterable[int], maker: ProcessModel, is_long: bool
    ) -> StorageModel:
        storage = StorageModel(values, maker, self.taken, is_long)
        self.storages.append(storage)
        return storage

    def makes(
        self, process: ProcessModel, values: Iterable[int], *, is_long: bool = False
    ) -> Reference:
        """Record that a process makes a tensor, and return it."""
        return self.holds(process, self._new_storage(values, process, is_long))

    def holds(
        self, process: ProcessModel, storage: StorageModel, *, pinned: bool = False
    ) -> Reference:
        """Add a tensor of a process over a storage, and return it."""
        reference = Reference(process, storage, pinned)
        self.references.append(reference)
        storage.references.append(reference)
        return reference

    def held_by(self, process: ProcessModel) -> list[Reference]:
        """Return the references of a process."""
        return [one for one in self.references if one.process is process]

    def writes(self, reference: Reference, index: int, value: int) -> None:
        """Record that a process writes one element."""
        reference.storage.becomes("written", keeps=True)
        reference.storage.values[index] = value

    def shares(self, reference: Reference) -> None:
        """Record that a process shares a tensor."""
        reference.storage.move("shared", reference.process.strategy)
        reference.storage.has_moved = True

    def drops(self, reference: Reference) -> None:
        """Record that a process drops a tensor."""
        for message in reference.storage.messages:
            if message.sender is reference.process:
                message.becomes("sender dropped")
        self._let_go(reference, "dropped", "holder dropped")

    def _let_go(self, reference: Reference, event: str, of_name: str) -> None:
        """Remove a reference, and the storage if nothing else refers to it."""
        storage = reference.storage
        self.references.remove(reference)
        storage.references.remove(reference)
        is_last = not storage.references and not storage.messages
        if is_last:
            event = LAST[event]
            of_name = f"last {of_name}"
        elif event == "dropped" and not storage.references:
            event = "dropped in flight"
        if is_last or storage.is_shared:
            storage.becomes(event)
        if storage.name.state in ("there", "unwatched"):
            storage.name.becomes(of_name)
        if is_last:
            self.storages.remove(storage)

    # Messages

    def in_flight(self) -> Iterator[MessageModel]:
        """Yield the messages in all channels."""
        for channel in self.channels:
            yield from list(channel.waiting)

    def puts(
        self,
        references: list[Reference],
        sender: ProcessModel,
        channel: ChannelModel,
        size: int = 0,
    ) -> MessageModel:
        """Record that a process puts a message, and return it.

        If the channel is full, the message is refused and moves no storage.
        """
        self.messages += 1
        storages = [one.storage for one in references]
        message = MessageModel(self.messages, sender, storages, size, self.taken)
        if channel.is_full:
            message.becomes("refused")
            return message
        for storage in storages:
            event = "sent" if storage.maker is sender else "sent on"
            storage.move(event, sender.strategy, message)
        message.becomes("put")
        channel.waiting.append(message)
        channel.unfinished += channel.counts
        for storage in storages:
            storage.messages.append(message)
        return message

    def receives(
        self, process: ProcessModel, channel: ChannelModel, message: MessageModel
    ) -> list[Reference]:
        """Record that a process receives a message, and return its tensors.

        Earlier messages of the same sender are all uncertain, and are lost now.
        """
        for earlier in list(channel.waiting):
            if earlier is message:
                break
            if earlier.sender is message.sender:
                self.is_missing(channel, earlier)
        channel.waiting.remove(message)
        message.becomes("received")
        held = [self.holds(process, storage) for storage in message.storages]
        for storage in message.storages:
            storage.messages.remove(message)
            storage.has_moved = True
            storage.becomes("received")
            if storage.name.state in ("there", "unwatched"):
                storage.name.becomes("received")
        return held

    def is_missing(self, channel: ChannelModel, message: MessageModel) -> None:
        """Record that a message whose sender ended abruptly is lost."""
        channel.waiting.remove(message)
        message.becomes("found missing")
        self._leaves(message)

    def _leaves(self, message: MessageModel) -> None:
        """Remove a lost message, and storages that nothing else refers to."""
        for storage in message.storages:
            storage.messages.remove(message)
            is_last = not storage.references and not storage.messages
            storage.becomes("last holder was killed" if is_last else "message was lost")
            if is_last:
                if storage.name.state in ("there", "unwatched"):
                    storage.name.becomes("last message was lost")
                self.storages.remove(storage)

    # What the processes are compared with

    def names(self) -> tuple[int, int]:
        """Return the minimum and the maximum number of names.

        Storages that one call has moved may have one name in common: clause LIFE-26.
        """
        named = [
            one for one in self.storages if one.name.state in ("there", "unwatched")
        ]
        moved = [one for one in named if one.has_moved]
        certain = [one for one in moved if one.references or _is_certain(one)]
        return len({id(one.moved_by) for one in certain}), len(named)

    def clauses_of_names(self) -> tuple[str, ...]:
        """Return the clauses about the names of the present storages."""
        found = (clause for one in self.storages for clause in one.name.clauses)
        return (*dict.fromkeys(found), "LIFE-17")


def _is_certain(storage: StorageModel) -> bool:
    return any(message.state == "in flight" for message in storage.messages)


def _to_message(
    message: MessageModel, process: ProcessModel, how: str, *, waited: bool
) -> str:
    """Return the event that the end of a process is for a message in flight."""
    if message.sender is not process or message.state == "uncertain":
        return "waiting reader was killed" if waited else "process ended"
    return "sender exited" if how == "exited" else "sender ended abruptly"
