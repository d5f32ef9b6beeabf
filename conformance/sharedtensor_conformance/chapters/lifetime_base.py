"""Starts the processes of random histories with deaths and checks them by the model.

The model is in `lifetime_model`, and the processes are those of an isolated stage.
`HistoryState` keeps both in step. It also writes the script, in which each process,
channel and tensor has a name. `lifetime_messages`, `lifetime_steps` and
`lifetime_histories` extend it by subclasses.

`HistoryState.clauses` is set before an action or a check. If the action or the check
fails, these are the clauses that the implementation breaks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.chapters.lifetime_model import (
    ChannelModel,
    LifetimeModel,
    ProcessModel,
    StorageModel,
    TensorModel,
)
from sharedtensor_conformance.chapters.process_actions import end
from sharedtensor_conformance.chapters.tensor_actions import first_values
from sharedtensor_conformance.harness import check, eventually
from sharedtensor_conformance.harness.ledger import kinds as kinds_of
from sharedtensor_conformance.harness.proxies import Remote

INITIAL_PROCESSES = 3
"""Processes at the beginning of a history, the owner included.

Later steps may start children until one process more is running.
"""

MAX_CHILDREN = 5  # in one history, those that have ended included

MAX_IN_FLIGHT = 6
"""Messages that one channel may contain before a process has to receive one.

A bounded queue has its own limit instead.
"""

CHANNEL_CAPACITY = 16 << 10
"""Bytes that a channel of any kind takes before a process has to read."""

MAX_HELD = 8
"""Tensors that exist at once. They are few, so that steps often pick the same one."""

TENSORS_PER_MESSAGE = (0, 1, 1, 1, 2, 2, 3)
"""Numbers of tensors in a message. A number that occurs more often is more likely."""

LONG_PADDING = 20_000
"""Zeros after the first elements of a long tensor.

They make its storage too large for the segments in which the reference puts several
small storages together (clause LIFE-26).
"""

BOUNDS = {"queue_of_two": 2, "joinable_queue_of_three": 3}

DROP_IN_QUEUES = ("joinable_queue", *BOUNDS)
"""Kinds of queues of the drop-in module, used in addition to the claimed channels."""

BLOCKING_CHANNELS = ("simple_queue", "pipe")
"""Kinds of channels on which `put` waits until there is room for the message."""


@dataclass(eq=False)
class HeldTensor:
    """A tensor in a process, with its name in the script and its model."""

    name: str
    remote: Any
    model: TensorModel

    @property
    def process(self) -> ProcessModel:
        """The process that holds the tensor."""
        return self.model.process

    @property
    def values(self) -> list[int]:
        """The values that the tensor must have; a long one has zeros after them."""
        return self.model.storage.values

    @property
    def is_settled(self) -> bool:
        """Whether a step may use the tensor: its storage is not about to move."""
        return self.model.storage.is_settled


@dataclass(eq=False)
class HistoryChannel:
    """A channel, with its name in the script, its proxy and its model.

    `count_is_known` becomes false when a message may have been lost. The number of
    messages in the channel is then unknown.
    """

    name: str
    proxy: Any
    model: ChannelModel
    count_is_known: bool = True

    @property
    def is_queue(self) -> bool:
        """Whether several processes may wait for a message on the channel."""
        return self.model.kind not in BLOCKING_CHANNELS

    @property
    def can_put(self) -> bool:
        """Whether `put` returns if the channel is empty in the model.

        A message that was lost with its sender still takes a place in a bounded queue.
        """
        return self.count_is_known or not self.model.bound

    @property
    def is_empty(self) -> bool:
        """Whether the channel is empty and `put` returns."""
        return self.can_put and not self.model.messages

    def has_room_for(self, size: int) -> bool:
        """Return whether `put` of `size` bytes returns although no process reads."""
        if self.model.bound:
            return self.can_put and not self.model.is_full
        if len(self.model.messages) >= MAX_IN_FLIGHT:
            return False
        return self.is_queue or self.model.total_size + size <= CHANNEL_CAPACITY


class HistoryState:
    """The state of one history: its processes, channels and tensors, and the model.

    Args:
        stage: an isolated stage. Only its owner may have been started.
        implementation: what the adapter declares.
        kinds: the kinds of steps of the history.
        children_started: how many children the owner started in earlier histories.

    Attributes:
        model: the model of the history.
        actors: the process of the stage for each process of the model.
        held: the tensors that the processes hold.
        lines: the script.
        last_value: the last number that an element got.
        name_count: how many tensors got a name.
        resources_before: the resources of each process at the beginning, if no step
            starts one.
        storage_descriptor_kinds: the kinds of descriptors that refer to storages.
    """

    def __init__(
        self,
        stage: Any,
        implementation: Implementation,
        kinds: Any,
        children_started: int = 0,
    ) -> None:
        self.stage = stage
        self.implementation = implementation
        self.kinds = frozenset(kinds)
        self.children_started = children_started
        self.model = LifetimeModel(stage.configuration.strategy)
        self.actors: dict[ProcessModel, Any] = {}
        self.held: list[HeldTensor] = []
        self.channels: list[HistoryChannel] = []
        self.lines: list[str] = []
        self.clauses: tuple[str, ...] = ()
        self.last_value = 0
        self.name_count = 0
        self.resources_before: dict[ProcessModel, Any] = {}
        self.storage_descriptor_kinds: set[str] = set()

    # The script and the tensors

    def log(self, line: str, clauses: tuple[str, ...] = ()) -> None:
        """Add a line to the script, and set the clauses that the action is about."""
        self.lines.append(line)
        self.clauses = clauses

    def new_values(self, count: int) -> list[int]:
        """Return `count` numbers that no element has had before."""
        first = self.last_value + 1
        self.last_value += count
        return list(range(first, self.last_value + 1))

    def actor(self, process: ProcessModel) -> Any:
        """Return the actor of a process of the model."""
        return self.actors[process]

    def hold(self, remote: Any, model: TensorModel) -> HeldTensor:
        """Add a tensor to the held ones, under a new name, and return it.

        Raises:
            CheckFailed: `remote` is not a tensor.
        """
        check(isinstance(remote, Remote), "what is there is a tensor")
        self.name_count += 1
        held = HeldTensor(f"t{self.name_count}", remote, model)
        self.held.append(held)
        return held

    def make(self, process: ProcessModel, number: int) -> HeldTensor:
        """Let a process make a tensor. One in four is long: see `LONG_PADDING`."""
        values = self.new_values(2 + number % 3)
        is_long = number // 3 % 4 == 0
        padding = [0] * LONG_PADDING if is_long else []
        text = f"{values} + [0] * {LONG_PADDING}" if is_long else f"{values}"
        self.log(f"t{self.name_count + 1} = {process.name}.make({text})", ("SHARE-12",))
        remote = self.actor(process).make([*values, *padding])
        model = self.model.record_make(process, values, is_long=is_long)
        if not self.implementation.private:  # making is a request to share
            self.model.record_share(model)
        return self.hold(remote, model)

    def values_of(self, remote: Any, storage: StorageModel) -> list[Any]:
        """Return the values of the elements that the model knows.

        These are all elements, or the first ones of a long tensor.
        """
        if not storage.is_long:
            return list(remote.values())
        count = len(storage.values)
        return list(remote.actor.run(first_values, remote, count))

    def clauses_of(self, tensor: HeldTensor) -> tuple[str, ...]:
        """Return the clauses about the last event of a tensor's storage."""
        return tensor.model.storage.clauses

    # Picking

    def pick_tensor(
        self, number: int, fits: Callable[[HeldTensor], object]
    ) -> HeldTensor | None:
        """Return one of the usable tensors that fit; None if there is none."""
        fitting = [one for one in self.held if one.is_settled and fits(one)]
        return fitting[number % len(fitting)] if fitting else None

    def pick_process(self, number: int, *, but: Sequence[ProcessModel] = ()) -> Any:
        """Return a running process that is not in `but`; None if there is none."""
        running = [one for one in self.model.running() if one not in but]
        return running[number % len(running)] if running else None

    def pick_child(self, number: int) -> ProcessModel | None:
        """Return one of the running children; None if there is none."""
        child: ProcessModel | None = self.pick_process(number, but=[self.owner])
        return child

    @property
    def may_kill(self) -> bool:
        """Whether a step may kill a process.

        It may not after the manager was killed, because no clause then says what a
        killed process leaves behind.
        """
        return "kill" in self.kinds and self.model.has_manager

    def pick_channel(
        self, number: int, fits: Callable[[HistoryChannel], object]
    ) -> HistoryChannel | None:
        """Return one of the channels that fit; None if there is none."""
        fitting = [one for one in self.channels if fits(one)]
        return fitting[number % len(fitting)] if fitting else None

    def pick_exchange(
        self, process_number: int, channel_number: int
    ) -> tuple[ProcessModel, ProcessModel, HistoryChannel] | None:
        """Return a sender, a receiver and an empty channel; None if one is missing."""
        sender = self.pick_process(process_number)
        receiver = self.pick_process(process_number // 7, but=[sender])
        channel = self.pick_channel(channel_number, lambda one: one.is_empty)
        if sender is None or receiver is None or channel is None:
            return None
        return sender, receiver, channel

    def pick_or_make(self, process: ProcessModel, number: int) -> list[HeldTensor]:
        """Return up to three tensors of a process, some of them newly made."""
        number, which = divmod(number, len(TENSORS_PER_MESSAGE))
        tensors: list[HeldTensor] = []
        for _ in range(TENSORS_PER_MESSAGE[which]):
            others = [
                one
                for one in self.held
                if one.process is process and one.is_settled and one not in tensors
            ]
            number, new = divmod(number, 3)
            number, which = divmod(number, 12)
            if len(self.held) < MAX_HELD and (new == 0 or not others):
                tensors.append(self.make(process, which))
            elif others:
                tensors.append(others[which % len(others)])
        return tensors

    # The beginning

    def start_all(self) -> None:
        """Open one channel of each kind, and start the processes."""
        owner = self.stage.owner
        self.owner = self.model.record_start("owner")
        self.actors[self.owner] = owner
        kinds = list(self.implementation.channels)
        if "drop-in" in self.implementation.claims and "queue" in kinds:
            kinds += DROP_IN_QUEUES
        for kind in kinds:
            self.log(f'{kind} = owner.open_channel("{kind}")', ("API-3",))
            is_joinable = kind.startswith("joinable")
            model = ChannelModel(kind, BOUNDS.get(kind, 0), is_joinable)
            self.model.channels.append(model)
            self.channels.append(HistoryChannel(kind, owner.open_channel(kind), model))
        if "program" in self.kinds:
            self.find_storage_descriptors()
        for _ in range(INITIAL_PROCESSES - 1):
            self.start_child([])
        if "start" not in self.kinds:
            self.record_resources()

    def find_storage_descriptors(self) -> None:
        """Find out which kinds of descriptors the owner has open for a storage."""
        owner = self.stage.owner
        before = Counter(owner.system.targets())
        tensor = owner.make([1, 2])
        owner.operate("share", tensor)
        new = Counter(owner.system.targets()) - before
        self.storage_descriptor_kinds = set(kinds_of(new.elements()))
        tensor.drop()

    def record_resources(self) -> None:
        """Record the resources of each process, for a comparison at the end.

        Before that, each process receives a tensor from every other one. So the record
        includes what is opened at the first use and kept.
        """
        channel = self.channels[0].proxy
        for sender, receiver in permutations(self.actors.values(), 2):
            tensor = sender.make([0, 1])
            channel.put(sender, tensor)
            channel.get(receiver).drop()
            tensor.drop()
        for process, actor in self.actors.items():
            self.resources_before[process] = self.stage.holdings(actor)

    def start_child(self, tensors: list[HeldTensor]) -> None:
        """Let the owner start a child, with all channels and some of its tensors."""
        method = self.stage.configuration.start_method
        forks = method == "fork"
        names = ", ".join(tensor.name for tensor in tensors)
        # It has the initial strategy also under fork: `enter_child` sets it.
        child = self.model.record_start(
            f"child-{self.children_started + len(self.actors)}"
        )
        self.log(
            f'{child.name} = owner.start_peer([{names}], "{method}")',
            ("START-3", "START-4") if forks else ("START-2", "START-1"),
        )
        channels = [channel.proxy for channel in self.channels]
        remotes = [tensor.remote for tensor in tensors]
        actor = self.actor(self.owner).start_peer([channels, remotes], method)
        self.actors[child] = actor
        if forks:
            self.model.record_fork(self.owner)
        arrived = actor.arguments[1] if tensors else []
        check.equal(len(arrived), len(tensors), "all arguments arrive")
        for tensor, remote in zip(tensors, arrived, strict=True):
            storage = tensor.model.storage
            if forks:
                model = self.model.record_inherited_argument(child, storage)
            else:
                model = self.model.record_passed_argument(self.owner, child, storage)
            held = self.hold(remote, model)
            self.log(f"{held.name} = {child.name}.arguments", storage.clauses)
        self.verify()

    @property
    def has_full_queue(self) -> bool:
        """Whether a queue contains so much that its senders may be unable to exit."""
        return any(
            channel.is_queue and channel.model.total_size > CHANNEL_CAPACITY
            for channel in self.channels
        )

    # Checks

    def verify(self) -> None:
        """Check the values of every usable tensor."""
        for tensor in self.held:
            if tensor.is_settled and tensor.process.is_running:
                self.clauses = tensor.model.storage.clauses
                values = self.values_of(tensor.remote, tensor.model.storage)
                sentence = f"{tensor.name} holds {tensor.values} at the end of this"
                check.equal(values, tensor.values, sentence)

    def verify_names(self) -> None:
        """Check the number of segments that have names (`LifetimeModel.name_range`).

        It must be at least the minimum now. Unless the manager was killed, it must fall
        to the maximum within the grace period.
        """
        if "strategy-fs" not in self.implementation.claims:
            return
        self.clauses = self.model.clauses_of_names()
        least, most = self.model.name_range()
        if self.implementation.kept_segments:
            least = min(least, 1)  # one file may contain all storages
            most += self.stage.kept
        count = len(self.stage.ledger.segments())
        check(count >= least, f"{least} segments have names (there are {count})")
        if self.model.has_manager:
            self.clauses = ("FS-2", "FS-9", "LIFE-8", "LIFE-20", "LIFE-17", "LIFE-7")
            eventually(
                lambda: len(self.stage.ledger.segments()) <= most,
                f"no more than {most} segments have names",
                self.stage.grace,
                found=lambda: sorted(self.stage.ledger.segments()),
            )

    def drop(self, tensor: HeldTensor) -> None:
        """Let its process drop a tensor."""
        self.held.remove(tensor)
        self.log(f"{tensor.name}.drop()", self.clauses_of(tensor))
        tensor.remote.drop()
        self.model.record_drop(tensor.model)

    def record_end(self, process: ProcessModel, how: str) -> None:
        """Record that a process has ended, and that it holds nothing any more.

        `how` is one of those of `LifetimeModel.record_end`.
        """
        self.held = [one for one in self.held if one.process is not process]
        self.model.record_end(process, how)
        self.resources_before.pop(process, None)
        for channel in self.channels:
            if channel.model.has_uncertain:
                channel.count_is_known = False

    def end_child(self, child: ProcessModel, how: str) -> None:
        """End a child abruptly, then check the tensors and names of the others.

        `how` is one of `lifetime_model.ABRUPT_ENDS`.
        """
        clauses = ("LIFE-20", "LIFE-8")
        if how == "killed":
            self.log(f"{child.name}.kill()", clauses)
            self.actor(child).kill()
        else:
            self.log(f'{child.name}.end("{how}")', clauses)
            self.actor(child).run_to_end(end, how)
        self.record_end(child, how)
        self.verify()
        self.verify_names()
