"""Runs random histories in which processes end, and compares them with a model.

In each history the owner opens one channel of each kind and starts children, which get
all channels. The processes make, share, send, receive and drop tensors. They exit and
are killed, start others while messages are in flight, fill bounded queues, wait at the
same time, and send messages of many sizes. `lifetime_model` says which values each
tensor has, which messages have to arrive, which may be lost, and what has to be gone at
the end.

The steps are data, as in `aliasing_histories`. One owner is used for several histories,
until a history ends it. A failure cites the clauses about the last event of the tensor
or message that the check is about.
"""

from __future__ import annotations

from contextlib import ExitStack, closing, nullcontext
from functools import partial
from random import Random
from typing import Any

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.chapters import history_search
from sharedtensor_conformance.chapters.history_search import History, HistoryFailed
from sharedtensor_conformance.chapters.lifetime_base import CHANNEL_CAPACITY
from sharedtensor_conformance.chapters.lifetime_model import ProcessModel
from sharedtensor_conformance.chapters.lifetime_steps import ProcessSteps
from sharedtensor_conformance.chapters.shared_steps import (
    share_in_another_program,
    strategy_set,
)
from sharedtensor_conformance.chapters.thread_actions import stop_idle_threads
from sharedtensor_conformance.harness import check, eventually
from sharedtensor_conformance.harness.channels import Channel
from sharedtensor_conformance.harness.outcomes import RemoteRaised

PROFILE_OF_STEP = {
    "read": "core",
    "make": "core",
    "idle": "core",
    "put": "core",
    "get": "core",
    "hand_over": "core",
    "write": "core",
    "drop": "core",
    "many": "core",
    "sizes": "core",
    "start": "core",
    "share": "share",
    "strategy": "strategies",
    "exit": "lifetime",
    "kill": "lifetime",
    "end": "lifetime",
    "pile": "core",
    "fill": "drop-in",
    "poll": "drop-in",
    "race": "drop-in",
    "join": "drop-in",
    "program": "strategy-fd",
    "kill_manager": "manager",
}
"""The kinds of steps, and the profile that each one needs."""

COMMON_STEPS = (
    *("make", "put", "put", "put", "put", "get", "get", "get"),
    *("write", "write", "drop", "drop", "share", "idle"),
)
"""Kinds of steps that most families contain. More frequent kinds are more likely."""

FAMILIES: dict[str, tuple[str, ...]] = {
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

HISTORY_LENGTH = (14, 30)
"""The smallest and largest number of steps, including those that do nothing."""

NUMBER_LIMIT = 1 << 40
"""The numbers of a step are below this. One number serves several choices."""

RELATIVE_COST = {"fork": 20, "forkserver": 40, "spawn": 60}
"""How many histories of `aliasing_histories` one of these costs, by start method.

Those start no processes. A case runs `--histories` divided by this number.
"""

GENERAL_CLAUSE = "SHARE-12"
"""The clause about any sequence of steps. It is broken if no other clause applies."""

OWNER_GOES_ON, ALL_RECEIVED = "owner goes on", "all is received"
ENDINGS = (
    *(OWNER_GOES_ON, OWNER_GOES_ON, OWNER_GOES_ON, OWNER_GOES_ON, OWNER_GOES_ON),
    *(ALL_RECEIVED, "all exit", "all are killed", "owner is killed first"),
)
"""The ways in which a history ends. More frequent ones are more likely.

An owner that goes on carries effects of this history into the next one, and no other
owner has to be started. In the last three ways processes end while they hold tensors.
Only the profile `lifetime` says what has to be gone then. So in families without
processes that are killed, whose tests do not cite its clauses, histories end as
`ALL_RECEIVED` instead; and all of them do if the profile is not claimed.
"""


class LifetimeHistory(ProcessSteps):
    """Runs one history, in the processes and in the model.

    Attributes:
        owner_goes_on: whether the owner holds nothing at the end, and can be used for
            another history.
    """

    owner_goes_on = False

    def run(self, steps: History) -> None:
        """Run the steps and the end of a history.

        Raises:
            HistoryFailed: the implementation or the suite failed.
        """
        self.ending = ALL_RECEIVED
        try:
            self.start_all()
            for kind, *numbers in steps:
                self.clauses = ()
                getattr(self, f"step_{kind}")(*numbers)
            self.finish(self.ending)
        except Exception as error:
            raise self.failure(error, self.failed_clauses(error)) from error

    def failure(self, error: Exception, clauses: tuple[str, ...]) -> HistoryFailed:
        """Return the exception that reports the failure of the history."""
        script = "\n".join(f"    {line}" for line in self.lines)
        return HistoryFailed(error, script, clauses)

    def failed_clauses(self, error: Exception) -> tuple[str, ...]:
        """Return the clauses that a failure is about, the most specific first.

        The last one is `GENERAL_CLAUSE`, which every test cites.
        """
        if isinstance(error, RemoteRaised) and not self.model.has_manager:
            return ("MGR-14", GENERAL_CLAUSE)
        return (*(id for id in self.clauses if id != GENERAL_CLAUSE), GENERAL_CLAUSE)

    # The end

    def step_ending(self, number: int, _: int, __: int) -> None:
        """Choose how the history ends."""
        self.ending = ENDINGS[number % len(ENDINGS)]

    def finish(self, ending: str) -> None:
        """End the history in one of `ENDINGS`, and check that nothing is left.

        Without the profile `lifetime` this is checked only if no tensor is held. If the
        owner goes on, `LifetimeRunner` checks what it holds.
        """
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
        everything_goes = has_lifetime or not self.held
        in_channels = any(channel.model.messages for channel in self.channels)
        # After the manager was killed, no clause says what killed processes leave.
        if "kill" in ending and self.model.has_manager:
            self.kill_all(first=self.owner if ending.startswith("owner") else None)
            ended = "LIFE-10"
        else:
            self.exit_all()
            ended = "LIFE-9"
        self.clauses = ("LIFE-14", ended) if in_channels else (ended, "LIFE-7")
        if not self.model.has_manager:
            self.clauses = ("MGR-14",)
        self.model.record_all_ended()
        if ended == "LIFE-10":
            share_in_another_program(self.stage)
        if everything_goes:
            eventually(
                lambda: not self.leftovers(),
                "nothing is left of all that when everybody has ended",
                self.stage.grace,
                found=self.leftovers,
            )

    def leftovers(self) -> list[str]:
        """Return the segments, temporary files and processes that are left.

        If a process was killed, temporary files do not count, because it could not
        remove them.
        """
        ledger = self.stage.ledger
        if any(process.state == "killed" for process in self.model.processes):
            return [*sorted(ledger.segments()), *ledger.processes().values()]
        return list(ledger.left_behind())

    def receive_all(self) -> None:
        """Let the owner receive all messages, and check that there are no others."""
        for channel in self.channels:
            while channel.model.messages:
                self.receive(self.owner, channel)
            self.log(f"owner.get_within({channel.name}, 0)", ("CHAN-4", "LIFE-15"))
            payloads = channel.proxy.get_within(self.actor(self.owner), 0)
            check.equal(payloads, [], f"nothing more is in {channel.name}")
        self.verify()

    def drop_all(self) -> None:
        """Drop all tensors except arguments, and check the processes' resources.

        They must be as at the beginning. This is checked only if they were recorded
        then and the manager was not killed.
        """
        for tensor in [one for one in self.held if not one.model.pinned]:
            self.drop(tensor)
        self.verify_names()
        if not self.model.has_manager:
            return
        for process, before in self.resources_before.items():
            self.log(f"{process.name} has what it had", ("LIFE-7", "LIFE-17"))
            self.stage.check_released(before, self.actor(process))

    def exit_all(self) -> None:
        """Let all processes exit, the owner last.

        Before that, the owner receives messages that could keep a sender from exiting.
        """
        for channel in self.channels:
            while channel.is_queue and channel.model.total_size > CHANNEL_CAPACITY:
                self.receive(self.owner, channel)
        for process in sorted(self.model.running(), key=lambda one: one is self.owner):
            self.exit_normally(process)

    def exit_children(self) -> None:
        """Let all children exit, and make the owner ready for another history."""
        for child in [one for one in self.model.running() if one is not self.owner]:
            self.exit_normally(child)
        owner = self.actor(self.owner)
        for channel in self.channels:
            self.log(f"{channel.name} is closed")
            channel.proxy.use(owner, Channel.close)
            channel.proxy.drop(owner)
        self.set_strategy(self.owner, self.stage.configuration.strategy)
        owner.run(stop_idle_threads)
        self.stage.end_extra()
        self.owner_goes_on = True

    def exit_normally(self, process: ProcessModel) -> None:
        """Let a process exit normally."""
        self.log(f"{process.name}.leave()", ("LIFE-9", "MGR-13"))
        status = self.actor(process).leave()
        self.record_end(process, "exited")
        check.equal(status, 0, f"{process.name} exits normally")

    def kill_all(self, first: ProcessModel | None) -> None:
        """Kill all processes, `first` first if given, and otherwise the owner last."""
        order = self.model.running()
        order.sort(key=lambda one: (one is not first, one is self.owner))
        for process in order:
            self.log(f"{process.name}.kill()", ("LIFE-10",))
            self.actor(process).kill()
            self.record_end(process, "killed")


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
        """Require that what a history leaves stays there: see `SystemControl`."""
        with self.stage.fresh(alone=True) as fresh:
            fresh.owner.ensure_started()
            fresh.system.require_no_other_cleaner()

    def run(self, steps: History) -> HistoryFailed | None:
        """Run a history; return its failure, or None if it did not fail."""
        if self.isolated is None:
            fresh = self.stage.fresh(alone=True)
            self.isolated = self.exit_stack.enter_context(fresh)
        implementation = self.stage.implementation
        history = LifetimeHistory(
            self.isolated, implementation, self.kinds, self.children_started
        )
        try:
            history.run(steps)
            if history.owner_goes_on:
                self.check_owner(history)
            else:
                self.renew()
        except HistoryFailed as failed:
            self.renew()
            return failed
        return None

    def check_owner(self, history: LifetimeHistory) -> None:
        """Check that the owner holds no more than after its first history.

        Raises:
            HistoryFailed: it holds more.
        """
        self.children_started += len(history.actors) - 1
        if "share" not in self.stage.implementation.claims:
            return
        try:
            if self.holdings is None:
                self.use_all_strategies()
                self.holdings = self.isolated.holdings(self.isolated.owner)
            else:
                self.isolated.check_released(self.holdings, self.isolated.owner)
        except Exception as error:
            raise history.failure(error, ("LIFE-7", GENERAL_CLAUSE)) from error

    def use_all_strategies(self) -> None:
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
    kinds = [kind for kind in FAMILIES[family] if PROFILE_OF_STEP[kind] in claims]
    if len(implementation.strategies) < 2:
        kinds = [kind for kind in kinds if kind != "strategy"]
    return ["read", *kinds]


def run_histories(stage: Any, family: str, count: int, seed: int) -> None:
    """Run `count` histories of a family.

    Raises:
        CheckFailed, ActorDied, DeadlineExceeded, HarnessFault: a history failed. The
            message contains the shortest failing one that was found.
        NotRun: no history failed, but others could have removed what killed processes
            left.
    """
    kinds = kinds_for(stage.implementation, family)
    runner = LifetimeRunner(stage, kinds)
    with closing(runner.exit_stack):
        history_search.search_histories(partial(draw, kinds), runner, count, seed)
        if "kill" in kinds:
            runner.require_no_other_cleaner()


def draw(kinds: list[str], rng: Random) -> History:
    """Return a random history of these kinds of steps.

    Its last step determines how the history ends.
    """
    drawn = [*rng.choices(kinds, k=rng.randint(*HISTORY_LENGTH)), "ending"]
    return [history_search.draw_step(rng, kind, NUMBER_LIMIT) for kind in drawn]
