"""The model of who holds what: what random histories with deaths are compared with.

Beside the model of aliasing (`histories`), which knows what each element holds, this
one knows who may read it, what has to arrive and what has to be gone. It is a world of
processes, storages, names, channels and messages, each in a state of its machine
(`state_machines`). What happens is told to the world, and the world says what has to be
so then. It starts no process and asks nobody.

A message whose sender ended abruptly may arrive or not, so what there has to be is a
range: what certainly is, and what may be.
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
"""What it is called if it happens to the last reference."""

ABRUPT = ("killed", "by os._exit", "by SIGTERM", "by an exception")
"""Ends after which what the process has put may be lost; a normal exit is `exited`."""


OF_THE_SENDER = frozenset({"sender exited", "sender ended abruptly"})
"""What happens to a message with its sender."""


Taken = Counter[tuple[str, str, str]]
"""How often each transition was taken: its machine, its state and its event."""


class Thing:
    """What is in a state of a machine, and the clauses that bind that state."""

    def __init__(self, machine: Machine, taken: Taken) -> None:
        self._machine = machine
        self._taken = taken
        self.state = machine.first
        self.clauses: tuple[str, ...] = ()
        self.events: list[str] = []

    def becomes(self, event: str, *, keeps: bool = False) -> None:
        """Go on to the state after an event.

        Where it `keeps` what bound it before, the event is not the last word on it.
        """
        transition = self._machine.after(self.state, event)
        before = self.clauses if keeps else ()
        self.state = transition.next
        self.clauses = tuple(dict.fromkeys((*before, *transition.clauses)))
        self._taken[self._machine.name, transition.state, event] += 1
        self.events.append(event)


class ProcessModel(Thing):
    """A process, and the strategy by which it shares what is private."""

    def __init__(
        self, name: str, strategy: str, taken: Taken, *, forked: bool = False
    ) -> None:
        super().__init__(PROCESS, taken)
        self.name = name
        self.strategy = strategy
        self.forked = forked

    @property
    def runs(self) -> bool:
        """Whether it can be asked for something."""
        return self.state == "running"

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, in one way or the other."""
        return self.state in ("exited", "killed")


class StorageModel(Thing):
    """A storage: what it holds, who holds it, and in which messages it is.

    Args:
        values: what its elements hold, or the first of them.
        maker: who made it.
        taken: the transitions that were taken.
        is_long: there are elements behind those of `values`.
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
        """Whether it is in a segment."""
        return self.state == "shared"

    @property
    def settled(self) -> bool:
        """Whether it stays where it is.

        What was put for the first time may move at any moment until it arrives: clause
        CHAN-7 says what may be done with it meanwhile.
        """
        return self.has_moved or not self.messages

    def move(self, event: str, strategy: str, by: object = None) -> None:
        """Go into a segment, or stay there.

        What was moved `by` one call may have a file in common.
        """
        if self.state == "private" and strategy == NAMED:
            self.name.becomes("shared")
            self.moved_by = by or self
        elif self.name.state in ("there", "unwatched"):
            self.name.becomes("sent")
        self.becomes(event)


@dataclass(eq=False)
class Reference:
    """A tensor that a process has.

    Args:
        process: who has it.
        storage: what it is a window on.
        pinned: it came among the arguments of the process, which keeps those.
    """

    process: ProcessModel
    storage: StorageModel
    pinned: bool = False


class MessageModel(Thing):
    """A message: who sent it, and the storages that are in it."""

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
        """Something happens while it is in flight.

        What happened to its sender goes on to bind it, whatever others do.
        """
        bound = self.clauses if OF_THE_SENDER & set(self.events) else ()
        self.becomes(event)
        self.clauses = bound or self.clauses


@dataclass
class ChannelModel:
    """A channel that every process has.

    Args:
        kind: what it is, as the harness opens it.
        bound: the number of messages that it takes; 0 for any.
        counts: it counts the tasks that are not done.
    """

    kind: str
    bound: int = 0
    counts: bool = False
    waiting: deque[MessageModel] = field(default_factory=deque)
    unfinished: int = 0

    @property
    def is_full(self) -> bool:
        """Whether it refuses the next message."""
        return bool(self.bound) and len(self.waiting) >= self.bound

    @property
    def certain(self) -> list[MessageModel]:
        """The messages that have to arrive."""
        return [one for one in self.waiting if one.state == "in flight"]

    @property
    def has_uncertain(self) -> bool:
        """Whether a message in it may arrive or not."""
        return len(self.certain) < len(self.waiting)

    @property
    def bytes(self) -> int:
        """How many bytes of ballast are in it."""
        return sum(one.size for one in self.waiting)

    def next_ones(self) -> list[MessageModel]:
        """Return the messages of which one has to be received next.

        It is the first of each sender, and what comes after those of its messages that
        may be lost.
        """
        found, closed = [], set()
        for message in self.waiting:
            if message.sender not in closed:
                found.append(message)
            if message.state == "in flight":
                closed.add(message.sender)
        return found


class World:
    """All that there is, and what happens to it.

    Args:
        strategy: that of every process when it begins.
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
        """A process begins."""
        process = ProcessModel(
            name, strategy or self.strategy, self.taken, forked=forked
        )
        self.processes.append(process)
        return process

    def running(self) -> list[ProcessModel]:
        """Return the processes that can be asked for something."""
        return [one for one in self.processes if one.runs]

    def forks(self, parent: ProcessModel) -> None:
        """A process forks: what waits in the channels is received once all the same."""
        parent.becomes("forks")
        for message in self.in_flight():
            message.hears("process forked")

    def inherits(self, child: ProcessModel, storage: StorageModel) -> Reference:
        """A forked child has what was among its arguments, shared or a copy of it."""
        storage.becomes("inherited")
        if not storage.is_shared:
            storage = self._new_storage(storage.values, child, storage.is_long)
            storage.becomes("copied by a fork")
        return self.holds(child, storage, pinned=True)

    def is_given(
        self, parent: ProcessModel, child: ProcessModel, storage: StorageModel
    ) -> Reference:
        """A process that does not inherit gets a tensor among its arguments."""
        storage.move("given to a spawned process", parent.strategy, child)
        storage.has_moved = True
        return self.holds(child, storage, pinned=True)

    def ends(self, process: ProcessModel, how: str) -> None:
        """A process ends: `exited`, or one of `ABRUPT`."""
        waited = process.state == "waiting"
        process.becomes("exits" if how == "exited" else "is killed")
        event = "holder exited" if how == "exited" else "holder was killed"
        for message in self.in_flight():
            message.hears(_to_message(message, process, how, waited=waited))
        for reference in self.held_by(process):
            self._let_go(reference, event, "holder ended")

    def everybody_ended(self) -> None:
        """The last process has ended: what is in flight is lost."""
        for message in self.in_flight():
            message.becomes("everybody ended")
            self._leaves(message)
        for channel in self.channels:
            channel.waiting.clear()

    def manager_was_killed(self) -> None:
        """The manager was killed: nothing is lost by that."""
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
        """A process changes its strategy: what is shared stays as it is."""
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
        """A process makes a tensor."""
        return self.holds(process, self._new_storage(values, process, is_long))

    def holds(
        self, process: ProcessModel, storage: StorageModel, *, pinned: bool = False
    ) -> Reference:
        """A process has one more reference to a storage."""
        reference = Reference(process, storage, pinned)
        self.references.append(reference)
        storage.references.append(reference)
        return reference

    def held_by(self, process: ProcessModel) -> list[Reference]:
        """Return the references that a process has."""
        return [one for one in self.references if one.process is process]

    def writes(self, reference: Reference, index: int, value: int) -> None:
        """A process writes one element."""
        reference.storage.becomes("written", keeps=True)
        reference.storage.values[index] = value

    def shares(self, reference: Reference) -> None:
        """A process shares a tensor."""
        reference.storage.move("shared", reference.process.strategy)
        reference.storage.has_moved = True

    def drops(self, reference: Reference) -> None:
        """A process drops a tensor."""
        for message in reference.storage.messages:
            if message.sender is reference.process:
                message.becomes("sender dropped")
        self._let_go(reference, "dropped", "holder dropped")

    def _let_go(self, reference: Reference, event: str, of_name: str) -> None:
        """A reference goes; with the last one the storage does."""
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
        """Yield the messages that were put and not received."""
        for channel in self.channels:
            yield from list(channel.waiting)

    def puts(
        self,
        references: list[Reference],
        sender: ProcessModel,
        channel: ChannelModel,
        size: int = 0,
    ) -> MessageModel:
        """A process puts a message; a full queue refuses it."""
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
        """A process receives a message; what its sender lost before it is lost."""
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
        """A message that may be lost is."""
        channel.waiting.remove(message)
        message.becomes("found missing")
        self._leaves(message)

    def _leaves(self, message: MessageModel) -> None:
        """A message is nowhere any more; what only it referred to is gone."""
        for storage in message.storages:
            storage.messages.remove(message)
            is_last = not storage.references and not storage.messages
            storage.becomes("last holder was killed" if is_last else "message was lost")
            if is_last:
                if storage.name.state in ("there", "unwatched"):
                    storage.name.becomes("last message was lost")
                self.storages.remove(storage)

    # What has to be so

    def names(self) -> tuple[int, int]:
        """Return how many names there have to be, and how many there may be.

        What one call has moved may have one name in common: clause LIFE-26.
        """
        named = [
            one for one in self.storages if one.name.state in ("there", "unwatched")
        ]
        moved = [one for one in named if one.has_moved]
        certain = [one for one in moved if one.references or _is_certain(one)]
        return len({id(one.moved_by) for one in certain}), len(named)

    def clauses_of_names(self) -> tuple[str, ...]:
        """Return the clauses that bind the names that there are."""
        found = (clause for one in self.storages for clause in one.name.clauses)
        return (*dict.fromkeys(found), "LIFE-17")


def _is_certain(storage: StorageModel) -> bool:
    return any(message.state == "in flight" for message in storage.messages)


def _to_message(
    message: MessageModel, process: ProcessModel, how: str, *, waited: bool
) -> str:
    """Return what the end of a process means to a message in flight."""
    if message.sender is not process or message.state == "uncertain":
        return "waiting reader was killed" if waited else "process ended"
    return "sender exited" if how == "exited" else "sender ended abruptly"
