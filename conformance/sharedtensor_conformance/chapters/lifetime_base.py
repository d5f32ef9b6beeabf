"""Starts the processes of random histories with deaths and checks them by the model.

The model is in `lifetime_model`, and the processes are those of an isolated stage.
`Ground` keeps both in step. It also writes the script, in which each process, channel
and tensor has a name. `lifetime_messages`, `lifetime_steps` and `lifetime_histories`
extend it by subclasses.

`Ground.clauses` is set before an action or a check. If the action or the check fails,
these are the clauses that the implementation breaks.
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
    ProcessModel,
    Reference,
    StorageModel,
    World,
)
from sharedtensor_conformance.harness import check, eventually
from sharedtensor_conformance.harness.ledger import kinds as kinds_of
from sharedtensor_conformance.harness.proxies import Remote

PROCESSES = 3
"""Processes at the beginning of a history, the owner included.

Later steps may start children until one process more is running.
"""

STARTED = 5  # children of one history at most, those that have ended included

IN_FLIGHT = 6
"""Messages that one channel may contain before a process has to receive one.

A bounded queue has its own limit instead.
"""

ROOM = 16 << 10
"""Bytes that a channel of any kind takes before a process has to read."""

MAX_HELD = 8
"""Tensors that exist at once. They are few, so that steps often pick the same one."""

TOGETHER = (0, 1, 1, 1, 2, 2, 3)
"""Numbers of tensors in a message. A number that occurs more often is more likely."""

LONG = 20_000
"""Zeros after the first elements of a long tensor.

They make its storage too large for the segments in which the reference puts several
small storages together (clause LIFE-26).
"""

BOUNDS = {"queue_of_two": 2, "joinable_queue_of_three": 3}

DROP_IN = ("joinable_queue", *BOUNDS)
"""Kinds of queues of the drop-in module, used in addition to the claimed channels."""

DIRECT = ("simple_queue", "pipe")
"""Kinds of channels on which `put` waits until there is room for the message."""


@dataclass(eq=False)
class HeldTensor:
    """A tensor in a process, with its name in the script and its model."""

    name: str
    remote: Any
    reference: Reference

    @property
    def process(self) -> ProcessModel:
        """The process that holds the tensor."""
        return self.reference.process

    @property
    def values(self) -> list[int]:
        """The values that the tensor must have; a long one has zeros after them."""
        return self.reference.storage.values

    @property
    def is_free(self) -> bool:
        """Whether a step may use the tensor: its storage is not about to move."""
        return self.reference.storage.settled


@dataclass(eq=False)
class Route:
    """A channel, with its name in the script, its proxy and its model.

    `counts_are_known` becomes false when a message may have been lost. The number of
    messages in the channel is then unknown.
    """

    name: str
    proxy: Any
    model: ChannelModel
    counts_are_known: bool = True

    @property
    def is_queue(self) -> bool:
        """Whether several processes may wait for a message on the channel."""
        return self.model.kind not in DIRECT

    @property
    def is_usable(self) -> bool:
        """Whether `put` returns if the channel is empty in the model.

        A message that was lost with its sender still takes a place in a bounded queue.
        """
        return self.counts_are_known or not self.model.bound

    @property
    def is_free(self) -> bool:
        """Whether the channel is empty and `put` returns."""
        return self.is_usable and not self.model.waiting

    def has_room_for(self, size: int) -> bool:
        """Return whether `put` of `size` bytes returns although no process reads."""
        if self.model.bound:
            return self.is_usable and not self.model.is_full
        if len(self.model.waiting) >= IN_FLIGHT:
            return False
        return self.is_queue or self.model.bytes + size <= ROOM


class Ground:
    """The state of one history: its processes, channels and tensors, and the model.

    Args:
        stage: an isolated stage. Only its owner may have been started.
        implementation: what the adapter declares.
        kinds: the kinds of steps of the history.
        started: how many children the owner started in earlier histories.

    Attributes:
        actors: the process of the stage for each process of the model.
        before: the resources of each process at the beginning, if no step starts one.
        of_storages: the kinds of descriptors that refer to storages.
    """

    def __init__(
        self, stage: Any, implementation: Implementation, kinds: Any, started: int = 0
    ) -> None:
        self.stage = stage
        self.implementation = implementation
        self.kinds = frozenset(kinds)
        self.started = started
        self.world = World(stage.configuration.strategy)
        self.actors: dict[ProcessModel, Any] = {}
        self.held: list[HeldTensor] = []
        self.routes: list[Route] = []
        self.lines: list[str] = []
        self.clauses: tuple[str, ...] = ()
        self.numbers = self.names = 0
        self.before: dict[ProcessModel, Any] = {}
        self.of_storages: set[str] = set()

    # The script and the tensors

    def does(self, line: str, clauses: tuple[str, ...] = ()) -> None:
        """Add a line to the script, and set the clauses that the action is about."""
        self.lines.append(line)
        self.clauses = clauses

    def new_values(self, count: int) -> list[int]:
        """Return `count` numbers that no element has had before."""
        first = self.numbers + 1
        self.numbers += count
        return list(range(first, self.numbers + 1))

    def actor(self, process: ProcessModel) -> Any:
        """Return the actor of a process of the model."""
        return self.actors[process]

    def hold(self, remote: Any, reference: Reference) -> HeldTensor:
        """Add a tensor to the held ones, under a new name, and return it.

        Raises:
            CheckFailed: `remote` is not a tensor.
        """
        check(isinstance(remote, Remote), "what is there is a tensor")
        self.names += 1
        held = HeldTensor(f"t{self.names}", remote, reference)
        self.held.append(held)
        return held

    def make(self, process: ProcessModel, number: int) -> HeldTensor:
        """Let a process make a tensor. One in four is long: see `LONG`."""
        values = self.new_values(2 + number % 3)
        is_long = number // 3 % 4 == 0
        rest = [0] * LONG if is_long else []
        told = f"{values} + [0] * {LONG}" if is_long else f"{values}"
        self.does(f"t{self.names + 1} = {process.name}.make({told})", ("SHARE-12",))
        remote = self.actor(process).make([*values, *rest])
        reference = self.world.makes(process, values, is_long=is_long)
        if not self.implementation.private:  # making is a request to share
            self.world.shares(reference)
        return self.hold(remote, reference)

    def values_of(self, remote: Any, storage: StorageModel) -> list[Any]:
        """Return the values of the elements that the model knows.

        These are all elements, or the first ones of a long tensor.
        """
        if not storage.is_long:
            return list(remote.values())
        count = len(storage.values)
        return list(remote.actor.request("act", "first_values", remote, count))

    def bound(self, one: HeldTensor) -> tuple[str, ...]:
        """Return the clauses about the last event of a tensor's storage."""
        return one.reference.storage.clauses

    # Picking

    def pick(
        self, number: int, fits: Callable[[HeldTensor], object]
    ) -> HeldTensor | None:
        """Return one of the usable tensors that fit; None if there is none."""
        fitting = [one for one in self.held if one.is_free and fits(one)]
        return fitting[number % len(fitting)] if fitting else None

    def process(self, number: int, *, but: Sequence[ProcessModel] = ()) -> Any:
        """Return a running process that is not in `but`; None if there is none."""
        running = [one for one in self.world.running() if one not in but]
        return running[number % len(running)] if running else None

    def child(self, number: int) -> ProcessModel | None:
        """Return one of the running children; None if there is none."""
        found: ProcessModel | None = self.process(number, but=[self.owner])
        return found

    @property
    def may_kill(self) -> bool:
        """Whether a step may kill a process.

        It may not after the manager was killed, because no clause then says what a
        killed process leaves behind.
        """
        return "kill" in self.kinds and self.world.has_manager

    def route(self, number: int, fits: Callable[[Route], object]) -> Route | None:
        """Return one of the channels that fit; None if there is none."""
        fitting = [route for route in self.routes if fits(route)]
        return fitting[number % len(fitting)] if fitting else None

    def some_of(self, process: ProcessModel, number: int) -> list[HeldTensor]:
        """Return up to three tensors of a process, some of them newly made."""
        number, which = divmod(number, len(TOGETHER))
        found: list[HeldTensor] = []
        for _ in range(TOGETHER[which]):
            own = [
                one
                for one in self.held
                if one.process is process and one.is_free and one not in found
            ]
            number, new = divmod(number, 3)
            number, which = divmod(number, 12)
            if len(self.held) < MAX_HELD and (new == 0 or not own):
                found.append(self.make(process, which))
            elif own:
                found.append(own[which % len(own)])
        return found

    # The beginning

    def begin(self) -> None:
        """Open one channel of each kind, and start the processes."""
        owner = self.stage.owner
        self.owner = self.world.begins("owner")
        self.actors[self.owner] = owner
        kinds = list(self.implementation.channels)
        if "drop-in" in self.implementation.claims and "queue" in kinds:
            kinds += DROP_IN
        for kind in kinds:
            self.does(f'{kind} = owner.open_channel("{kind}")', ("API-3",))
            counts = kind.startswith("joinable")
            model = ChannelModel(kind, BOUNDS.get(kind, 0), counts)
            self.world.channels.append(model)
            self.routes.append(Route(kind, owner.open_channel(kind), model))
        if "program" in self.kinds:
            self.look_at_a_storage()
        for _ in range(PROCESSES - 1):
            self.start([])
        if "start" not in self.kinds:
            self.account()

    def look_at_a_storage(self) -> None:
        """Find out which kinds of descriptors the owner has open for a storage."""
        owner = self.stage.owner
        before = Counter(owner.system.targets())
        tensor = owner.make([1, 2])
        owner.operate("share", tensor)
        new = Counter(owner.system.targets()) - before
        self.of_storages = set(kinds_of(new.elements()))
        tensor.drop()

    def account(self) -> None:
        """Record the resources of each process, for a comparison at the end.

        Before that, each process receives a tensor from every other one. So the record
        includes what is opened at the first use and kept.
        """
        route = self.routes[0].proxy
        for sender, receiver in permutations(self.actors.values(), 2):
            tensor = sender.make([0, 1])
            route.put(sender, tensor)
            route.get(receiver).drop()
            tensor.drop()
        for process, actor in self.actors.items():
            self.before[process] = self.stage.holdings(actor)

    def start(self, tensors: list[HeldTensor]) -> None:
        """Let the owner start a child, with all channels and some of its tensors."""
        method = self.stage.configuration.start_method
        forks = method == "fork"
        names = ", ".join(one.name for one in tensors)
        model = self.world.begins(
            f"child-{self.started + len(self.actors)}",
            self.owner.strategy if forks else "",
            forked=forks,
        )
        self.does(
            f'{model.name} = owner.start_peer([{names}], "{method}")',
            ("START-3", "START-4") if forks else ("START-2", "START-1"),
        )
        channels = [route.proxy for route in self.routes]
        remotes = [one.remote for one in tensors]
        owner = self.actor(self.owner)
        child = owner.start_peer([channels, remotes], method)
        self.actors[model] = child
        self.world.forks(self.owner) if forks else None
        model.strategy = self.world.strategy  # `enter_child` sets it, also under fork
        arrived = child.arguments[1] if tensors else []
        check.equal(len(arrived), len(tensors), "all arguments arrive")
        for one, remote in zip(tensors, arrived, strict=True):
            storage = one.reference.storage
            if forks:
                reference = self.world.inherits(model, storage)
            else:
                reference = self.world.is_given(self.owner, model, storage)
            held = self.hold(remote, reference)
            self.does(f"{held.name} = {model.name}.arguments", storage.clauses)
        self.verify()

    @property
    def is_full(self) -> bool:
        """Whether a queue contains so much that its senders may be unable to exit."""
        return any(one.is_queue and one.model.bytes > ROOM for one in self.routes)

    # Checks

    def verify(self) -> None:
        """Check the values of every usable tensor."""
        for one in self.held:
            if one.is_free and one.process.runs:
                self.clauses = one.reference.storage.clauses
                found = self.values_of(one.remote, one.reference.storage)
                sentence = f"{one.name} holds {one.values} at the end of this"
                check.equal(found, one.values, sentence)

    def verify_names(self) -> None:
        """Check the number of segments that have names (`World.names`).

        It must be at least the minimum now. Unless the manager was killed, it must fall
        to the maximum within the grace period.
        """
        if "strategy-fs" not in self.implementation.claims:
            return
        self.clauses = self.world.clauses_of_names()
        least, most = self.world.names()
        if self.implementation.kept_segments:
            least = min(least, 1)  # one file may contain all storages
            most += self.stage.kept
        found = len(self.stage.ledger.segments())
        check(found >= least, f"{least} segments have names (there are {found})")
        if self.world.has_manager:
            self.clauses = ("FS-2", "FS-9", "LIFE-8", "LIFE-20", "LIFE-17", "LIFE-7")
            eventually(
                lambda: len(self.stage.ledger.segments()) <= most,
                f"no more than {most} segments have names",
                self.stage.grace,
                found=lambda: sorted(self.stage.ledger.segments()),
            )

    def drop(self, one: HeldTensor) -> None:
        """Let its process drop a tensor."""
        self.held.remove(one)
        self.does(f"{one.name}.drop()", self.bound(one))
        one.remote.drop()
        self.world.drops(one.reference)

    def has_ended(self, process: ProcessModel, how: str) -> None:
        """Record that a process has ended, and that it holds nothing any more.

        `how` is one of those of `World.ends`.
        """
        self.held = [one for one in self.held if one.process is not process]
        self.world.ends(process, how)
        self.before.pop(process, None)
        for route in self.routes:
            if route.model.has_uncertain:
                route.counts_are_known = False

    def end_of(self, child: ProcessModel, how: str) -> None:
        """End a child abruptly, then check the tensors and names of the others.

        `how` is one of `lifetime_model.ABRUPT`.
        """
        clauses = ("LIFE-20", "LIFE-8")
        if how == "killed":
            self.does(f"{child.name}.kill()", clauses)
            self.actor(child).kill()
        else:
            self.does(f'{child.name}.end("{how}")', clauses)
            self.actor(child).end(how)
        self.has_ended(child, how)
        self.verify()
        self.verify_names()
