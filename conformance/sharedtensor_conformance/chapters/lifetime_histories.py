"""Runs random histories in which processes end, and compares them with a model.

In each history the owner opens one channel of each kind and starts children, which get
all channels. The processes make, share, send, receive and drop tensors. They exit and
are killed, start others while messages are in flight, fill bounded queues, wait at the
same time, and send messages of many sizes. `lifetime_model` says which values each
tensor has, which messages have to arrive, which may be lost, and what has to be gone at
the end.

The steps are data, as in `histories`. One owner is used for several histories, until a
history ends it. A failure cites the clauses about the last event of the tensor or
message that the check is about.
"""

from __future__ import annotations

from contextlib import ExitStack, closing, nullcontext
from functools import partial
from random import Random
from typing import Any

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.chapters import history_search
from sharedtensor_conformance.chapters.history_search import HistoryFailed, Step
from sharedtensor_conformance.chapters.lifetime_ground import ROOM
from sharedtensor_conformance.chapters.lifetime_model import ProcessModel
from sharedtensor_conformance.chapters.lifetime_steps import Steps
from sharedtensor_conformance.chapters.shared_steps import strategy_set
from sharedtensor_conformance.harness import check, eventually
from sharedtensor_conformance.harness.outcomes import RemoteRaised

History = list[Step]
"""The steps of a history. The last one determines how the history ends."""

NEEDED = {
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

MOVES = (
    *("make", "put", "put", "put", "put", "get", "get", "get"),
    *("write", "write", "drop", "drop", "share", "idle"),
)
"""Kinds of steps that most families contain. More frequent kinds are more likely."""

FAMILIES: dict[str, tuple[str, ...]] = {
    "deaths": (
        *MOVES,
        "hand_over",
        "exit",
        "kill",
        "kill",
        "end",
        "start",
        "strategy",
    ),
    "queues": (*MOVES, "fill", "fill", "poll", "race", "race", "join", "join", "kill"),
    "limits": ("make", "put", "get", "drop", "hand_over", "hand_over", "many", "sizes"),
    "starts": (*MOVES, "pile", "start", "start", "start", "exit", "kill"),
    "programs": (
        *("make", "put", "put", "get", "share", "start", "program", "program"),
    ),
    "managers": (*MOVES, "kill_manager", "kill_manager", "exit", "kill", "start"),
}
"""The kinds of steps of each test. More frequent kinds are more likely."""

STEPS = (14, 30)
"""The smallest and largest number of steps, including those that do nothing."""

NUMBERS = 1 << 40
"""The numbers of a step are below this. One number serves several choices."""

COST = {"fork": 20, "forkserver": 40, "spawn": 60}
"""How many histories of `histories` take as long as one of these, by start method.

Those start no processes. A case runs `--histories` divided by this number.
"""

GENERAL = "SHARE-12"
"""The clause about any sequence of steps. It is broken if no other clause applies."""

GOES_ON, RECEIVED = "owner goes on", "all is received"
ENDINGS = (
    *(GOES_ON, GOES_ON, GOES_ON, GOES_ON, GOES_ON),
    *(RECEIVED, "all exit", "all are killed", "owner is killed first"),
)
"""The ways in which a history ends. More frequent ones are more likely.

An owner that goes on carries effects of this history into the next one, and no other
owner has to be started. In the last three ways processes end while they hold tensors.
Only the profile `lifetime` says what has to be gone then, so without it all histories
end as `RECEIVED`.
"""


class LifetimeHistory(Steps):
    """Runs one history, in the processes and in the model.

    Attributes:
        owner_goes_on: whether the owner holds nothing at the end, and can be used for
            another history.
    """

    owner_goes_on = False

    def take(self, history: History) -> None:
        """Run the steps and the end of a history.

        Raises:
            HistoryFailed: the implementation or the suite failed.
        """
        self.ending = RECEIVED
        try:
            self.begin()
            for kind, *picks in history:
                self.clauses = ()
                getattr(self, f"step_{kind}")(*picks)
            self.end(self.ending)
        except Exception as error:
            raise self.failed(error, self.bound_by(error)) from error

    def failed(self, error: Exception, clauses: tuple[str, ...]) -> HistoryFailed:
        """Return the exception that reports the failure of the history."""
        script = "\n".join(f"    {line}" for line in self.lines)
        return HistoryFailed(error, script, clauses)

    def bound_by(self, error: Exception) -> tuple[str, ...]:
        """Return the clauses that a failure is about, the most specific first.

        The last one is `GENERAL`, which every test cites.
        """
        if isinstance(error, RemoteRaised) and not self.world.has_manager:
            return ("MGR-14", GENERAL)
        return (*(id for id in self.clauses if id != GENERAL), GENERAL)

    # The end

    def step_ending(self, how: int, _: int, __: int) -> None:
        """Choose how the history ends."""
        self.ending = ENDINGS[how % len(ENDINGS)]

    def end(self, how: str) -> None:
        """End the history in one of `ENDINGS`, and check that nothing is left.

        Without the profile `lifetime` this is checked only if no tensor is held. If the
        owner goes on, `LifetimeProcesses` checks what it holds.
        """
        says = "lifetime" in self.implementation.claims
        how = how if says else RECEIVED
        if how in (GOES_ON, RECEIVED):
            self.receive_all()
            self.drop_all()
        if how == GOES_ON and self.world.has_manager:
            self.children_exit()
            return
        has_to_go = says or not self.held
        # After the manager was killed, no clause says what killed processes leave.
        if "kill" in how and self.world.has_manager:
            self.all_are_killed(first=self.owner if how.startswith("owner") else None)
            self.clauses = ("LIFE-10", "LIFE-14")
        else:
            self.all_exit()
            self.clauses = ("LIFE-9", "LIFE-14")
        if not self.world.has_manager:
            self.clauses = ("MGR-14",)
        self.world.everybody_ended()
        if has_to_go:
            eventually(
                lambda: not self.left(),
                "nothing is left of all that when everybody has ended",
                self.stage.grace,
                found=self.left,
            )

    def left(self) -> list[str]:
        """Return the segments, temporary files and processes that are left.

        If a process was killed, temporary files do not count, because it could not
        remove them.
        """
        ledger = self.stage.ledger
        if any(process.state == "killed" for process in self.world.processes):
            return [*sorted(ledger.segments()), *ledger.processes().values()]
        return list(ledger.left_behind())

    def receive_all(self) -> None:
        """Let the owner receive all messages, and check that there are no others."""
        for route in self.routes:
            while route.model.waiting:
                self.receive(self.owner, route)
            self.does(f"owner.get_within({route.name}, 0)", ("CHAN-4", "LIFE-15"))
            found = route.proxy.get_within(self.actor(self.owner), 0)
            check.equal(found, [], f"nothing more is in {route.name}")
        self.verify()

    def drop_all(self) -> None:
        """Drop all tensors except arguments, and check the processes' resources.

        They must be as at the beginning. This is checked only if they were recorded
        then and the manager was not killed.
        """
        for one in [one for one in self.held if not one.reference.pinned]:
            self.drop(one)
        self.verify_names()
        for process, before in self.before.items():
            self.does(f"{process.name} has what it had", ("LIFE-7", "LIFE-17"))
            if self.world.has_manager:
                self.stage.check_given_back(before, self.actor(process))

    def all_exit(self) -> None:
        """Let all processes exit, the owner last.

        Before that, the owner receives messages that could keep a sender from exiting.
        """
        for route in self.routes:
            while route.is_queue and route.model.bytes > ROOM:
                self.receive(self.owner, route)
        for process in sorted(self.world.running(), key=lambda one: one is self.owner):
            self.leaves(process)

    def children_exit(self) -> None:
        """Let all children exit, and make the owner ready for another history."""
        for child in [one for one in self.world.running() if one is not self.owner]:
            self.leaves(child)
        owner = self.actor(self.owner)
        for route in self.routes:
            self.does(f"{route.name} is closed")
            route.proxy.close(owner)
            route.proxy.drop(owner)
        self.set_strategy(self.owner, self.stage.configuration.strategy)
        owner.request("act", "end_idle_threads")
        self.stage.end_extra()
        self.owner_goes_on = True

    def leaves(self, process: ProcessModel) -> None:
        """Let a process exit normally."""
        self.does(f"{process.name}.leave()", ("LIFE-9", "MGR-13"))
        status = self.actor(process).leave()
        self.has_ended(process, "exited")
        check.equal(status, 0, f"{process.name} exits normally")

    def all_are_killed(self, first: ProcessModel | None) -> None:
        """Kill all processes, `first` first if given, and otherwise the owner last."""
        order = self.world.running()
        order.sort(key=lambda one: (one is not first, one is self.owner))
        for process in order:
            self.does(f"{process.name}.kill()", ("LIFE-10",))
            self.actor(process).kill()
            self.has_ended(process, "killed")


class LifetimeProcesses:
    """Runs histories, each with the owner of the previous one if it goes on.

    Args:
        stage: the stage of the case, which makes the isolated stages.
        kinds: the kinds of steps of the histories.
    """

    def __init__(self, stage: Any, kinds: list[str]) -> None:
        self.stage = stage
        self.kinds = kinds
        self.isolated = ExitStack()
        self.fresh: Any = None
        self.started = 0
        self.holdings: Any = None

    def renew(self) -> None:
        """End all processes. The next history starts new ones."""
        self.isolated.close()
        self.fresh, self.started, self.holdings = None, 0, None

    def take(self, history: History) -> HistoryFailed | None:
        """Run a history; return its failure, or None if it did not fail."""
        if self.fresh is None:
            self.fresh = self.isolated.enter_context(self.stage.fresh(alone=True))
        implementation = self.stage.implementation
        taking = LifetimeHistory(self.fresh, implementation, self.kinds, self.started)
        try:
            taking.take(history)
            if taking.owner_goes_on:
                self.goes_on(taking)
            else:
                self.renew()
        except HistoryFailed as failed:
            self.renew()
            return failed
        return None

    def goes_on(self, taken: LifetimeHistory) -> None:
        """Check that the owner holds no more than after its first history.

        Raises:
            HistoryFailed: it holds more.
        """
        self.started += len(taken.actors) - 1
        if "share" not in self.stage.implementation.claims:
            return
        try:
            if self.holdings is None:
                self.use_all_strategies()
                self.holdings = self.fresh.holdings(self.fresh.owner)
            else:
                self.fresh.check_given_back(self.holdings, self.fresh.owner)
        except Exception as error:
            raise taken.failed(error, ("LIFE-7", GENERAL)) from error

    def use_all_strategies(self) -> None:
        """Let the owner share under each strategy.

        So its recorded resources include what is made at the first use and kept.
        """
        owner, own = self.fresh.owner, self.fresh.configuration.strategy
        for strategy in self.stage.implementation.strategies:
            with strategy_set(owner, strategy) if strategy != own else nullcontext():
                tensor = owner.make([0, 1])
                tensor.share()
                tensor.drop()


def kinds_for(implementation: Implementation, family: str) -> list[str]:
    """Return the kinds of steps of a family whose profiles are claimed, and `read`."""
    claims = implementation.claims
    kinds = [kind for kind in FAMILIES[family] if NEEDED[kind] in claims]
    if len(implementation.strategies) < 2:
        kinds = [kind for kind in kinds if kind != "strategy"]
    return ["read", *kinds]


def search(stage: Any, family: str, count: int, seed: int) -> None:
    """Run `count` histories of a family.

    Raises:
        CheckFailed, ActorDied, DeadlineExceeded, HarnessFault: a history failed. The
            message contains the shortest failing one that was found.
    """
    kinds = kinds_for(stage.implementation, family)
    processes = LifetimeProcesses(stage, kinds)
    with closing(processes.isolated):
        history_search.search(partial(draw, kinds), processes, count, seed)


def draw(kinds: list[str], chance: Random) -> History:
    """Return a random history of these kinds of steps, and its ending."""
    found = [*chance.choices(kinds, k=chance.randint(*STEPS)), "ending"]
    return [history_search.drawn(chance, kind, NUMBERS) for kind in found]
