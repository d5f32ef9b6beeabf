"""What random histories with deaths stand on: processes, channels and tensors.

The world of the model (`lifetime_model`) is on one side, the processes of an isolated
stage on the other. Here they are begun, named and compared. What is said in a script
comes with the clauses that bind it, so that a failure is one of theirs.
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
"""How many run at once; with those that ended `STARTED` at most."""

STARTED = 5

IN_FLIGHT = 6
"""Messages in one channel at once, where nobody waits for them."""

ROOM = 16 << 10
"""Bytes that a channel of any kind takes before somebody has to read."""

MAX_HELD = 8
"""Tensors that are held at once: few, so that the same are met again and again."""

TOGETHER = (0, 1, 1, 1, 2, 2, 3)
"""How many tensors are in a message, each as often as it is here."""

LONG = 20_000
"""Zeros behind the elements of a tensor that lies in no segment with others."""

BOUNDS = {"queue_of_two": 2, "joinable_queue_of_three": 3}

DROP_IN = ("joinable_queue", *BOUNDS)
"""The kinds of queues that the drop-in module has besides the channels claimed."""

DIRECT = ("simple_queue", "pipe")
"""Channels on which `put` waits until what it writes fits."""


@dataclass(eq=False)
class HeldTensor:
    """A tensor that a process holds: its name in the script, and its reference."""

    name: str
    remote: Any
    reference: Reference

    @property
    def process(self) -> ProcessModel:
        """The process that has it."""
        return self.reference.process

    @property
    def values(self) -> list[int]:
        """What it has to hold."""
        return self.reference.storage.values

    @property
    def is_free(self) -> bool:
        """Whether it can be used: nothing may be moving it."""
        return self.reference.storage.settled


@dataclass(eq=False)
class Route:
    """A channel: what a script calls it, its model, and how it is used."""

    name: str
    proxy: Any
    model: ChannelModel
    counts_are_known: bool = True

    @property
    def is_queue(self) -> bool:
        """Whether several processes can wait for what comes on it."""
        return self.model.kind not in DIRECT

    @property
    def is_usable(self) -> bool:
        """Whether what is put on it when it is empty does not wait for ever.

        A message that was lost with its sender keeps its place in a queue with a bound.
        """
        return self.counts_are_known or not self.model.bound

    @property
    def is_free(self) -> bool:
        """Whether nothing is in it, and something can be put."""
        return self.is_usable and not self.model.waiting

    def has_room_for(self, size: int) -> bool:
        """Return whether a put returns though nobody reads."""
        if self.model.bound:
            return self.is_usable and not self.model.is_full
        if len(self.model.waiting) >= IN_FLIGHT:
            return False
        return self.is_queue or self.model.bytes + size <= ROOM


class Ground:
    """The processes of a history and the world that they should be like.

    Args:
        stage: an isolated stage, on which nothing has been started.
        implementation: what the adapter declares.
        kinds: the kinds of steps that are taken.
        started: how many children its owner has started before.
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

    # Saying and asking

    def does(self, line: str, clauses: tuple[str, ...] = ()) -> None:
        """Write a line of the script; what comes of it is about these clauses."""
        self.lines.append(line)
        self.clauses = clauses

    def new_values(self, count: int) -> list[int]:
        """Return numbers that are nowhere yet."""
        first = self.numbers + 1
        self.numbers += count
        return list(range(first, self.numbers + 1))

    def actor(self, process: ProcessModel) -> Any:
        """Return who acts for a process."""
        return self.actors[process]

    def hold(self, remote: Any, reference: Reference) -> HeldTensor:
        """Know a tensor by a new name."""
        check(isinstance(remote, Remote), "what is there is a tensor")
        self.names += 1
        held = HeldTensor(f"t{self.names}", remote, reference)
        self.held.append(held)
        return held

    def make(self, process: ProcessModel, number: int) -> HeldTensor:
        """A process makes a tensor; each fourth one has a segment of its own if any."""
        values = self.new_values(2 + number % 3)
        is_long = number // 3 % 4 == 0
        rest = [0] * LONG if is_long else []
        told = f"{values} + [0] * {LONG}" if is_long else f"{values}"
        self.does(f"t{self.names + 1} = {process.name}.make({told})", ("SHARE-12",))
        remote = self.actor(process).make([*values, *rest])
        reference = self.world.makes(process, values, is_long=is_long)
        if not self.implementation.private:  # who makes one asks to share it
            self.world.shares(reference)
        return self.hold(remote, reference)

    def values_of(self, remote: Any, storage: StorageModel) -> list[Any]:
        """Return what the elements hold of which the model knows."""
        if not storage.is_long:
            return list(remote.values())
        count = len(storage.values)
        return list(remote.actor.request("act", "first_values", remote, count))

    def bound(self, one: HeldTensor) -> tuple[str, ...]:
        """Return the clauses that bind what was done last to a tensor's storage."""
        return one.reference.storage.clauses

    # Picking

    def pick(
        self, number: int, fits: Callable[[HeldTensor], object]
    ) -> HeldTensor | None:
        """Return one of the tensors that can be used and that fit."""
        fitting = [one for one in self.held if one.is_free and fits(one)]
        return fitting[number % len(fitting)] if fitting else None

    def process(self, number: int, *, but: Sequence[ProcessModel] = ()) -> Any:
        """Return one of the processes that run; None where there is none."""
        running = [one for one in self.world.running() if one not in but]
        return running[number % len(running)] if running else None

    def child(self, number: int) -> ProcessModel | None:
        """Return one of the children that run."""
        found: ProcessModel | None = self.process(number, but=[self.owner])
        return found

    @property
    def may_kill(self) -> bool:
        """Whether a process may be killed.

        What is left of those who are killed when their manager was, too, is not said.
        """
        return "kill" in self.kinds and self.world.has_manager

    def route(self, number: int, fits: Callable[[Route], object]) -> Route | None:
        """Return one of the channels that fit."""
        fitting = [route for route in self.routes if fits(route)]
        return fitting[number % len(fitting)] if fitting else None

    def some_of(self, process: ProcessModel, number: int) -> list[HeldTensor]:
        """Return some tensors of a process, or none: what it has, and new ones."""
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
        """Start the processes, with one channel of each kind."""
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
        """Learn what a descriptor of a storage points to."""
        owner = self.stage.owner
        before = Counter(owner.system.targets())
        tensor = owner.make([1, 2])
        owner.operate("share", tensor)
        new = Counter(owner.system.targets()) - before
        self.of_storages = set(kinds_of(new.elements()))
        tensor.drop()

    def account(self) -> None:
        """Note what each process has open, once each has received from all others.

        What is opened at the first use and kept does not count.
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
        """The owner starts a child, with all channels and some tensors."""
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
        model.strategy = self.world.strategy  # `enter_child` sets it
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
        """Whether so much is in a queue that who has put it cannot exit."""
        return any(one.is_queue and one.model.bytes > ROOM for one in self.routes)

    # What has to be so

    def verify(self) -> None:
        """Check what every tensor holds, and which names there are."""
        for one in self.held:
            if one.is_free and one.process.runs:
                self.clauses = one.reference.storage.clauses
                found = self.values_of(one.remote, one.reference.storage)
                sentence = f"{one.name} holds {one.values} at the end of this"
                check.equal(found, one.values, sentence)

    def verify_names(self) -> None:
        """Check that the names are there that have to be, and no others in the end."""
        if "strategy-fs" not in self.implementation.claims:
            return
        self.clauses = self.world.clauses_of_names()
        least, most = self.world.names()
        if self.implementation.kept_segments:
            least = min(least, 1)  # one file may have all storages
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
        """Let the process drop a tensor."""
        self.held.remove(one)
        self.does(f"{one.name}.drop()", self.bound(one))
        one.remote.drop()
        self.world.drops(one.reference)

    def has_ended(self, process: ProcessModel, how: str) -> None:
        """A process has ended, and nothing that it held is held by it."""
        self.held = [one for one in self.held if one.process is not process]
        self.world.ends(process, how)
        self.before.pop(process, None)
        for route in self.routes:
            if route.model.has_uncertain:
                route.counts_are_known = False

    def end_of(self, child: ProcessModel, how: str) -> None:
        """End a child abruptly; what the others have is as it was."""
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
