"""Random histories with deaths, limits and forks, compared with the model of lifetimes.

Each history has channels of its own, one of each kind, which an owner opens, and
children that get all of them. The owner may go on from one history to the next. They
make, share, send, receive and drop tensors,
exit, are killed, start others while messages wait, fill queues that have a bound, wait
side by side, and send messages of every size. `lifetime_model` says what each tensor
holds, what has to arrive, what may be lost and what has to be gone. A step is data, as
in `histories`: a kind, and numbers that pick among what is there.

What fails is told with the clauses that bind what was done last to the thing concerned.
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
from sharedtensor_conformance.chapters.stories import strategy_set
from sharedtensor_conformance.harness import check, eventually
from sharedtensor_conformance.harness.outcomes import RemoteRaised

History = list[Step]
"""The steps, the last of which says how it ends."""

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
"""The kinds of steps, and the profile that each one needs; the simplest comes first."""

MOVES = (
    *("make", "put", "put", "put", "put", "get", "get", "get"),
    *("write", "write", "drop", "drop", "share", "idle"),
)
"""What is done with tensors in all histories, as often as it is named."""

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
"""What the histories of each test are made of, as often as it is named."""

STEPS = (14, 30)
"""How many steps a history has, those that nothing fits among them."""

NUMBERS = 1 << 40
"""What a step picks by is below this: by one number it may pick several times."""

COST = {"fork": 20, "forkserver": 40, "spawn": 60}
"""One of these histories, with its processes, costs as much as so many without."""

GENERAL = "SHARE-12"
"""The clause that says of any sequence of steps what comes of it."""

GOES_ON, RECEIVED = "owner goes on", "all is received"
ENDINGS = (
    *(GOES_ON, GOES_ON, GOES_ON, GOES_ON, GOES_ON),
    *(RECEIVED, "all exit", "all are killed", "owner is killed first"),
)
"""How a history ends, each as often as it is named.

What is left where processes end that hold something is the matter of `lifetime`. An
owner that goes on brings a past to the next history, and saves the time to start one.
"""


class LifetimeHistory(Steps):
    """Takes steps, on the implementation and on the model, and ends everything.

    Attributes:
        owner_goes_on: the owner has nothing, and can take another history.
    """

    owner_goes_on = False

    def take(self, history: History) -> None:
        """Take the steps, and end all processes.

        Raises:
            HistoryFailed: the implementation did not do what it has to, or the suite
                failed itself.
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
        """Return what says that the history has failed."""
        script = "\n".join(f"    {line}" for line in self.lines)
        return HistoryFailed(error, script, clauses)

    def bound_by(self, error: Exception) -> tuple[str, ...]:
        """Return the clauses that a failure is about, the nearest first.

        The last one is cited by every test, and is broken by what no other is about.
        """
        if isinstance(error, RemoteRaised) and not self.world.has_manager:
            return ("MGR-14", GENERAL)
        return (*(id for id in self.clauses if id != GENERAL), GENERAL)

    # The end

    def step_ending(self, how: int, _: int, __: int) -> None:
        """Say how the history ends."""
        self.ending = ENDINGS[how % len(ENDINGS)]

    def end(self, how: str) -> None:
        """End all processes in one of several ways; nothing is left.

        What becomes of that which a process holds when it ends, only `lifetime` says.
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
        # What is left of those who are killed when their manager was is not said.
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
        """Return what is left: killed processes cannot remove temporary files."""
        ledger = self.stage.ledger
        if any(process.state == "killed" for process in self.world.processes):
            return [*sorted(ledger.segments()), *ledger.processes().values()]
        return list(ledger.left_behind())

    def receive_all(self) -> None:
        """The owner receives all that waits."""
        for route in self.routes:
            while route.model.waiting:
                self.receive(self.owner, route)
            self.does(f"owner.get_within({route.name}, 0)", ("CHAN-4", "LIFE-15"))
            found = route.proxy.get_within(self.actor(self.owner), 0)
            check.equal(found, [], f"nothing more is in {route.name}")
        self.verify()

    def drop_all(self) -> None:
        """Everything is dropped, and those who live on have what they had."""
        for one in [one for one in self.held if not one.reference.pinned]:
            self.drop(one)
        self.verify_names()
        for process, before in self.before.items():
            self.does(f"{process.name} has what it had", ("LIFE-7", "LIFE-17"))
            if self.world.has_manager:
                self.stage.check_given_back(before, self.actor(process))

    def all_exit(self) -> None:
        """All processes exit, the owner last; what is too large is received first."""
        for route in self.routes:
            while route.is_queue and route.model.bytes > ROOM:
                self.receive(self.owner, route)
        for process in sorted(self.world.running(), key=lambda one: one is self.owner):
            self.leaves(process)

    def children_exit(self) -> None:
        """All but the owner exit, which has nothing then but what it has once."""
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
        """A process exits normally."""
        self.does(f"{process.name}.leave()", ("LIFE-9", "MGR-13"))
        status = self.actor(process).leave()
        self.has_ended(process, "exited")
        check.equal(status, 0, f"{process.name} exits normally")

    def all_are_killed(self, first: ProcessModel | None) -> None:
        """All processes are killed, the owner first or last."""
        order = self.world.running()
        order.sort(key=lambda one: (one is not first, one is self.owner))
        for process in order:
            self.does(f"{process.name}.kill()", ("LIFE-10",))
            self.actor(process).kill()
            self.has_ended(process, "killed")


class LifetimeProcesses:
    """Takes each history with the owner of the one before, if that one goes on.

    Args:
        stage: makes stages of processes of their own.
        kinds: the kinds of steps that are taken.
    """

    def __init__(self, stage: Any, kinds: list[str]) -> None:
        self.stage = stage
        self.kinds = kinds
        self.isolated = ExitStack()
        self.fresh: Any = None
        self.started = 0
        self.holdings: Any = None

    def renew(self) -> None:
        """End all processes."""
        self.isolated.close()
        self.fresh, self.started, self.holdings = None, 0, None

    def take(self, history: History) -> HistoryFailed | None:
        """Let processes take a history; return how it failed."""
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
        """See that the owner has no more than after the first history.

        Raises:
            HistoryFailed: it has.
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
        """Let the owner share under each strategy: what the first use makes is kept."""
        owner, own = self.fresh.owner, self.fresh.configuration.strategy
        for strategy in self.stage.implementation.strategies:
            with strategy_set(owner, strategy) if strategy != own else nullcontext():
                tensor = owner.make([0, 1])
                tensor.share()
                tensor.drop()


def kinds_for(implementation: Implementation, family: str) -> list[str]:
    """Return the kinds of steps that an implementation can take."""
    claims = implementation.claims
    kinds = [kind for kind in FAMILIES[family] if NEEDED[kind] in claims]
    if len(implementation.strategies) < 2:
        kinds = [kind for kind in kinds if kind != "strategy"]
    return ["read", *kinds]


def search(stage: Any, family: str, count: int, seed: int) -> None:
    """Let processes take `count` histories of a family.

    Raises:
        CheckFailed, ActorDied, DeadlineExceeded, HarnessFault: one of them failed; the
            shortest one that was found is told.
    """
    kinds = kinds_for(stage.implementation, family)
    processes = LifetimeProcesses(stage, kinds)
    with closing(processes.isolated):
        history_search.search(partial(draw, kinds), processes, count, seed)


def draw(kinds: list[str], chance: Random) -> History:
    """Return a history of these kinds of steps."""
    found = [*chance.choices(kinds, k=chance.randint(*STEPS)), "ending"]
    return [history_search.drawn(chance, kind, NUMBERS) for kind in found]
