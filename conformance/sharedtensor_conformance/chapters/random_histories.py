"""Runs random histories of operations in processes, and compares them with a model.

There are two kinds of histories. An `AliasingHistory` is about which tensors see a
write. The three processes of a case perform its steps, and go on to the next history.

A `LifetimeHistory` is about processes that end: what arrives, what stays valid, and
what is left at the end. In each of them the owner opens one channel of each kind and
starts children, which get all channels. The processes exit and are killed, start others
while messages are in flight, fill bounded queues, wait at the same time, and send
messages of many sizes. One owner is used for several histories, until one ends it.

A failure cites the clauses about the last event of the tensor or message that the check
is about.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import Any

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.chapters.history_model import (
    BOUNDS,
    CHANNEL_CAPACITY,
    ChannelModel,
    HeldTensor,
    ProcessModel,
)
from sharedtensor_conformance.chapters.history_search import (
    HARNESS_ERRORS,
    Choices,
    History,
    HistoryFailed,
    draw_history,
    search_histories,
)
from sharedtensor_conformance.chapters.history_state import GENERAL_CLAUSE
from sharedtensor_conformance.chapters.history_steps import Steps, profile_of
from sharedtensor_conformance.chapters.shared_steps import (
    share_in_another_program,
    strategy_set,
)
from sharedtensor_conformance.chapters.system_changes import require_no_other_cleaner
from sharedtensor_conformance.chapters.thread_actions import stop_idle_threads
from sharedtensor_conformance.harness import check, eventually
from sharedtensor_conformance.harness.case.outcomes import CheckFailed, DeadlineExceeded
from sharedtensor_conformance.harness.ledger.ledger import kinds as kinds_of
from sharedtensor_conformance.harness.remote.actors import ActorProxy
from sharedtensor_conformance.harness.remote.channels import Channel

COMMON_STEPS = (
    *("make", "put", "put", "put", "put", "get", "get", "get"),
    *("write", "write", "drop", "drop", "share", "idle"),
)
"""Kinds of steps that most families with deaths contain."""

ALIASING_STEPS = (
    *("make", "send", "send", "send", "send", "send", "put", "get"),
    *("write", "write", "write", "drop", "drop", "share", "clone", "view"),
)
"""Kinds of steps that the families about aliasing contain.

Sends and writes show whether the other steps have disturbed the sharing.
"""

FAMILIES: dict[str, tuple[str, ...]] = {
    "aliasing": ALIASING_STEPS,
    "grads": (*ALIASING_STEPS, "set_grad", "take_grad", "clear_grad"),
    "deaths": (
        *COMMON_STEPS,
        *("hand_over", "exit", "kill", "kill", "end", "start", "strategy"),
    ),
    "queues": (
        *COMMON_STEPS,
        *("fill", "fill", "poll", "race", "race", "join", "join", "kill"),
    ),
    "limits": ("make", "put", "get", "drop", "hand_over", "hand_over", "many", "sizes"),
    "starts": (*COMMON_STEPS, "pile", "start", "start", "start", "exit", "kill"),
    "programs": (
        *("make", "put", "put", "get", "share", "start", "program", "program"),
    ),
    "managers": (
        *COMMON_STEPS,
        *("kill_manager", "kill_manager", "exit", "kill", "start"),
    ),
}
"""The kinds of steps of each test. More frequent kinds are more likely."""

RELATIVE_COST = {"fork": 20, "forkserver": 40, "spawn": 60}
"""How many histories about aliasing one of the others costs, by start method.

Only the others start processes. A case of theirs runs `--histories` divided by this
number.
"""

INITIAL_PROCESSES = 3
"""Processes at the beginning of a history, the owner included."""

DROP_IN_QUEUES = ("joinable_queue", *BOUNDS)
"""Kinds of queues of the drop-in module, used in addition to the claimed channels."""

OWNER_GOES_ON, ALL_RECEIVED = "owner goes on", "all is received"
ENDINGS = (
    *(OWNER_GOES_ON, OWNER_GOES_ON, OWNER_GOES_ON, OWNER_GOES_ON, OWNER_GOES_ON),
    *(ALL_RECEIVED, "all exit", "all are killed", "owner is killed first"),
)
"""The ways in which a history with deaths ends. More frequent ones are more likely.

An owner that goes on carries effects of this history into the next one, and no other
owner has to be started. In the last three ways processes end while they hold tensors.
Only the profile `lifetime` says what has to be gone then. So in families without
processes that are killed, whose tests do not cite its clauses, histories end as
`ALL_RECEIVED` instead; and all of them do if the profile is not claimed.
"""


@dataclass(frozen=True)
class PairProxy:
    """The channel of one kind from one process of a stage to another.

    It has the methods of a `ChannelProxy` that a history uses.
    """

    sender: ActorProxy
    receiver: ActorProxy
    kind: str

    def put(self, actor: ActorProxy, payload: Any) -> None:
        """Make the sender put a payload."""
        actor.put(payload, self.receiver, self.kind)

    def put_in_a_thread(self, actor: ActorProxy, payload: Any) -> None:
        """Make a new thread of the sender put a payload."""
        actor.put_in_a_thread(payload, self.receiver, self.kind)

    def get(self, actor: ActorProxy) -> Any:
        """Return the next payload, as the receiver gets it."""
        return actor.get(self.sender, self.kind)

    def get_in_a_thread(self, actor: ActorProxy) -> Any:
        """Return the next payload, as a new thread of the receiver gets it."""
        return actor.get_in_a_thread(self.sender, self.kind)


class AliasingHistory(Steps):
    """A history in three processes that have been started, and that go on after it."""

    counts_names = False  # the segments of the stage may be those of other cases
    makes_long_tensors = False

    def start(self) -> None:
        """Record the processes of the stage, and the channels between each two."""
        for actor in (self.stage.owner, self.stage.peer, self.stage.bystander):
            self.model.record_start(actor.name, actor)
        self.owner = self.model.processes[0]
        for ends in permutations(self.model.processes, 2):
            sender, receiver = (process.actor for process in ends)
            for kind in self.implementation.channels:
                proxy = PairProxy(sender, receiver, kind)
                self.model.channels.append(ChannelModel(kind, proxy, ends))

    def perform(self, kind: str, choose: Choices) -> None:
        """Perform one step; make a tensor instead if there is none."""
        super().perform(kind if self.model.held else "make", choose)

    def step_ending(self, _: Choices) -> None:
        """Choose nothing: these histories have one end."""

    def pick_message(
        self, choose: Choices
    ) -> tuple[ProcessModel, ChannelModel, list[HeldTensor], int]:
        """Return a sender, a channel with room, and one or two of its tensors."""
        first = self.pick_tensor(choose)
        process = first.process
        channel = self.pick_channel(
            choose, lambda one: one.sender is process and one.has_room_for(0)
        )
        others = self.usable(lambda one: one.process is process and one is not first)
        second = [choose.of(others)] if others and choose.one_in(5) else []
        return process, channel, [first, *second], 0

    def may_drop(self, held: HeldTensor) -> bool:
        """Return whether the storage is settled, and may lose a holder.

        Only the profile `lifetime` says that other holders keep what they have.
        """
        if not held.is_settled or "lifetime" in self.implementation.claims:
            return held.is_settled
        holders = [one for one in self.model.held if one.storage is held.storage]
        is_elsewhere = any(one.process is not held.process for one in holders)
        return not is_elsewhere and not held.storage.messages

    def finish(self) -> None:
        """Receive all messages, check all tensors and grads, and drop everything."""
        self.receive_all()
        if "take_grad" in self.kinds:
            for held in list(self.model.held):
                self.hold_grads(held)
            self.verify()
        for held in list(self.model.held):
            self.drop(held)

    def hold_grads(self, held: HeldTensor | None) -> None:
        """Read the grad of a tensor, the grad of the grad, and so on."""
        while held is not None:
            held = self.hold_grad(held)

    def abandon(self) -> None:
        """Receive all messages and drop everything, without checks."""
        for channel in self.model.channels:
            for _ in channel.messages:
                channel.proxy.get(channel.proxy.receiver)
        for process in self.model.processes:
            process.actor.drop_all()


class LifetimeHistory(Steps):
    """A history with deaths, in processes of its own.

    Args:
        stage: an isolated stage. Only its owner may have been started.
        kinds: the kinds of steps of the history.
        children_started: how many children the owner started in earlier histories.

    Attributes:
        ending: one of `ENDINGS`.
        resources_before: the resources of each process at the beginning, if no step
            starts one.
        owner_goes_on: whether the owner holds nothing at the end, and can be used for
            another history.
    """

    def __init__(self, stage: Any, kinds: list[str], children_started: int = 0) -> None:
        super().__init__(stage, kinds)
        self.children_started = children_started
        self.ending = ALL_RECEIVED
        self.resources_before: dict[ProcessModel, Any] = {}
        self.owner_goes_on = False

    # The beginning

    def start(self) -> None:
        """Open one channel of each kind, and start the processes."""
        owner = self.stage.owner
        self.owner = self.model.record_start("owner", owner)
        kinds = list(self.implementation.channels)
        if "drop-in" in self.implementation.claims and "queue" in kinds:
            kinds += DROP_IN_QUEUES
        for kind in kinds:
            self.log(f'{kind} = owner.open_channel("{kind}")', ("API-3",))
            channel = ChannelModel(kind, owner.open_channel(kind))
            self.model.channels.append(channel)
        if "program" in self.kinds:
            self.find_storage_descriptors()
        for _ in range(INITIAL_PROCESSES - 1):
            self.start_child([])
        if "start" not in self.kinds:
            self.record_resources()

    def find_storage_descriptors(self) -> None:
        """Find out which kinds of descriptors the owner has open for a storage."""
        owner = self.stage.owner
        before = Counter(owner.targets())
        tensor = owner.make([1, 2])
        owner.operate("share", tensor)
        new = Counter(owner.targets()) - before
        self.storage_descriptor_kinds = frozenset(kinds_of(new.elements()))
        tensor.drop()

    def record_resources(self) -> None:
        """Record the resources of each process, for a comparison at the end.

        Before that, each process receives a tensor from every other one. So the record
        includes what is opened at the first use and kept.
        """
        channel = self.model.channels[0].proxy
        actors = [process.actor for process in self.model.processes]
        for sender, receiver in permutations(actors, 2):
            tensor = sender.make([0, 1])
            channel.put(sender, tensor)
            channel.get(receiver).drop()
            tensor.drop()
        for process in self.model.processes:
            self.resources_before[process] = self.stage.holdings(process.actor)

    def start_child(self, tensors: list[HeldTensor]) -> None:
        """Let the owner start a child, with all channels and some of its tensors."""
        method = self.stage.configuration.start_method
        forks = method == "fork"
        names = ", ".join(held.name for held in tensors)
        # It has the initial strategy also under fork: `enter_child` sets it.
        number = self.children_started + len(self.model.processes)
        child = self.model.record_start(f"child-{number}")
        self.log(
            f'{child.name} = owner.start_peer([{names}], "{method}")',
            ("START-3", "START-4") if forks else ("START-2", "START-1"),
        )
        channels = [channel.proxy for channel in self.model.channels]
        remotes = [held.remote for held in tensors]
        child.actor = self.owner.actor.start_peer([channels, remotes], method)
        if forks:
            self.model.record_fork(self.owner)
        arrived = child.actor.arguments[1] if tensors else []
        check.equal(len(arrived), len(tensors), "all arguments arrive")
        for held, remote in zip(tensors, arrived, strict=True):
            self.hold_argument(child, held, remote, forks=forks)
        self.verify()

    def hold_argument(
        self, child: ProcessModel, given: HeldTensor, remote: Any, *, forks: bool
    ) -> None:
        """Hold a tensor that a child has among its arguments."""
        storage = given.storage
        if forks:
            tensor = self.model.record_inherited_argument(child, storage)
        else:
            tensor = self.model.record_passed_argument(self.owner, child, storage)
        held = self.hold(child, remote, tensor, pinned=True)
        self.log(f"{held.name} = {child.name}.arguments", storage.clauses)

    # The end

    def step_ending(self, choose: Choices) -> None:
        """Choose how the history ends."""
        self.ending = choose.of(ENDINGS)

    def finish(self) -> None:
        """End the history as `ending` says, and check that nothing is left.

        Without the profile `lifetime` this is checked only if no tensor is held. If the
        owner goes on, `LifetimeRunner` checks what it holds.
        """
        ending = self.ending
        has_lifetime = "lifetime" in self.implementation.claims
        may_hold = "kill" in self.kinds or ending == OWNER_GOES_ON
        if not (has_lifetime and may_hold):
            ending = ALL_RECEIVED
        if ending in (OWNER_GOES_ON, ALL_RECEIVED):
            self.receive_all()
            self.drop_all()
        if ending == OWNER_GOES_ON and self.model.has_manager:
            self.exit_children()
            return
        everything_goes = has_lifetime or not self.model.held
        self.end_all(ending)
        if everything_goes:
            eventually(
                lambda: not self.leftovers(),
                "nothing is left of all that when everybody has ended",
                self.stage.grace,
                found=self.leftovers,
            )

    def end_all(self, ending: str) -> None:
        """End all processes, and set the clauses about what may be left."""
        in_channels = any(channel.messages for channel in self.model.channels)
        # After the manager was killed, no clause says what killed processes leave.
        is_killed = "kill" in ending and self.model.has_manager
        if is_killed:
            self.kill_all(owner_first=ending.startswith("owner"))
        else:
            self.exit_all()
        ended = "LIFE-10" if is_killed else "LIFE-9"
        self.clauses = ("LIFE-14", ended) if in_channels else (ended, "LIFE-7")
        if not self.model.has_manager:
            self.clauses = ("MGR-14",)
        self.model.record_all_ended()
        if is_killed:
            share_in_another_program(self.stage)

    def leftovers(self) -> list[str]:
        """Return the segments, temporary files and processes that are left.

        If a process was killed, temporary files do not count, because it could not
        remove them.
        """
        ledger = self.stage.ledger
        if any(process.state == "killed" for process in self.model.processes):
            return [*sorted(ledger.segments()), *ledger.processes().values()]
        return list(ledger.left_behind())

    def drop_all(self) -> None:
        """Drop all tensors except arguments, and check the processes' resources.

        They must be as at the beginning. This is checked only if they were recorded
        then and the manager was not killed.
        """
        for held in [one for one in self.model.held if not one.pinned]:
            self.drop(held)
        self.verify_names()
        if not self.model.has_manager:
            return
        for process, before in self.resources_before.items():
            if process.is_running:
                self.log(f"{process.name} has what it had", ("LIFE-7", "LIFE-17"))
                self.stage.check_released(before, process.actor)

    def exit_all(self) -> None:
        """Let all processes exit, the owner last.

        Before that, the owner receives messages that could keep a sender from exiting.
        """
        for channel in self.model.channels:
            while channel.is_queue and channel.total_size > CHANNEL_CAPACITY:
                self.receive(self.owner, channel)
        for process in [*self.model.running(but=self.owner), self.owner]:
            self.exit_normally(process)

    def exit_children(self) -> None:
        """Let all children exit, and make the owner ready for another history."""
        for child in self.model.running(but=self.owner):
            self.exit_normally(child)
        owner = self.owner.actor
        for channel in self.model.channels:
            self.log(f"{channel.name} is closed")
            channel.proxy.use(owner, Channel.close)
            channel.proxy.drop(owner)
        self.set_strategy(self.owner, self.stage.configuration.strategy)
        owner.run(stop_idle_threads)
        self.stage.end_extra()
        self.owner_goes_on = True

    def kill_all(self, *, owner_first: bool) -> None:
        """Kill all processes, the owner first or last."""
        children = self.model.running(but=self.owner)
        order = [self.owner, *children] if owner_first else [*children, self.owner]
        for process in order:
            self.kill(process, ("LIFE-10",))


class AliasingRunner:
    """Runs histories in the processes of a case.

    After a failure other than a wrong value, new processes replace them.
    """

    def __init__(self, stage: Any, kinds: list[str]) -> None:
        self.stage = self.used = stage
        self.kinds = kinds
        self.exit_stack = ExitStack()
        self.has_hung = False
        self._start()

    def _start(self) -> None:
        for actor in (self.used.owner, self.used.peer, self.used.bystander):
            actor.ensure_started()  # before there is a tensor that it could inherit

    def renew(self) -> None:
        """Start new processes, on an isolated stage."""
        self.exit_stack.close()
        self.used = self.exit_stack.enter_context(self.stage.fresh())
        self._start()
        if self.has_hung:
            self.used.timeouts.shorten()

    def run(self, steps: History) -> HistoryFailed | None:
        """Run a history; return its failure, or None if it did not fail."""
        history = AliasingHistory(self.used, self.kinds)
        try:
            history.run(steps)
        except HistoryFailed as failed:
            self._recover(history, failed)
            return failed
        return None

    def _recover(self, history: AliasingHistory, failed: HistoryFailed) -> None:
        if isinstance(failed.error, CheckFailed):
            with suppress(*HARNESS_ERRORS):
                history.abandon()
                return
        self.has_hung |= isinstance(failed.error, DeadlineExceeded)
        self.renew()


class LifetimeRunner:
    """Runs histories, each with the owner of the previous one if it goes on.

    Args:
        stage: the stage of the case, which makes the isolated stages.
        kinds: the kinds of steps of the histories.
    """

    def __init__(self, stage: Any, kinds: list[str]) -> None:
        self.stage = stage
        self.kinds = kinds
        self.exit_stack = ExitStack()
        self.isolated: Any = None
        self.children_started = 0
        self.holdings: Any = None

    def renew(self) -> None:
        """End all processes. The next history starts new ones."""
        self.exit_stack.close()
        self.isolated, self.children_started, self.holdings = None, 0, None

    def require_no_other_cleaner(self) -> None:
        """Require that what a history leaves stays there: see `system_changes`."""
        with self.stage.fresh(alone=True) as fresh:
            fresh.owner.ensure_started()
            require_no_other_cleaner(fresh)

    def run(self, steps: History) -> HistoryFailed | None:
        """Run a history; return its failure, or None if it did not fail."""
        if self.isolated is None:
            fresh = self.stage.fresh(alone=True)
            self.isolated = self.exit_stack.enter_context(fresh)
        history = LifetimeHistory(self.isolated, self.kinds, self.children_started)
        try:
            history.run(steps)
            if history.owner_goes_on:
                self._check_owner(history)
            else:
                self.renew()
        except HistoryFailed as failed:
            self.renew()
            return failed
        return None

    def _check_owner(self, history: LifetimeHistory) -> None:
        """Check that the owner holds no more than after its first history."""
        self.children_started += len(history.model.processes) - 1
        if "share" not in self.stage.implementation.claims:
            return
        try:
            if self.holdings is None:
                self._use_all_strategies()
                self.holdings = self.isolated.holdings(self.isolated.owner)
            else:
                self.isolated.check_released(self.holdings, self.isolated.owner)
        except Exception as error:
            raise history.failure(error, ("LIFE-7", GENERAL_CLAUSE)) from error

    def _use_all_strategies(self) -> None:
        """Let the owner share under each strategy.

        So its recorded resources include what is made at the first use and kept.
        """
        owner, own = self.isolated.owner, self.isolated.configuration.strategy
        for strategy in self.stage.implementation.strategies:
            with strategy_set(owner, strategy) if strategy != own else nullcontext():
                tensor = owner.make([0, 1])
                tensor.share()
                tensor.drop()


def kinds_for(implementation: Implementation, family: str) -> list[str]:
    """Return the kinds of steps of a family whose profiles are claimed, and `read`."""
    claims = implementation.claims
    kinds = [kind for kind in FAMILIES[family] if profile_of(kind) in claims]
    if len(implementation.strategies) < 2:
        kinds = [kind for kind in kinds if kind != "strategy"]
    return ["read", *kinds]


def run_histories(stage: Any, family: str, count: int, seed: int) -> None:
    """Run random histories of a family: `count`, or fewer if they start processes.

    Raises:
        CheckFailed, ActorDied, DeadlineExceeded, HarnessFault: a history failed. The
            message contains the shortest failing one that was found.
        NotRun: no history failed, but others could have removed what killed processes
            left.
    """
    kinds = kinds_for(stage.implementation, family)
    draw = partial(draw_history, kinds)
    if family in ("aliasing", "grads"):
        in_place = AliasingRunner(stage, kinds)
        with in_place.exit_stack:
            search_histories(draw, in_place, count, seed)
        return
    runner = LifetimeRunner(stage, kinds)
    cost = RELATIVE_COST[stage.configuration.start_method]
    with runner.exit_stack:
        search_histories(draw, runner, max(1, count // cost), seed)
    if "kill" in kinds:
        runner.require_no_other_cleaner()
