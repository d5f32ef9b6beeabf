"""A stage: one owner with its peers and their supervisor, for one configuration.

The stage is the controller's side of the harness and has these parts: `supervision`
(the environment of the processes), `starter` (starts them), `ends` (waits for their
ends), and `ledger` (their resources). An actor is started at its first request. A
closed stage can be used again: its actors get new processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.harness.case.axes import Configuration
from sharedtensor_conformance.harness.case.checks import check
from sharedtensor_conformance.harness.case.listening import listener
from sharedtensor_conformance.harness.ledger.leaks import Growth, Leaks, LeakWaits
from sharedtensor_conformance.harness.ledger.stage_ledger import (
    Baseline,
    Holdings,
    StageLedger,
)
from sharedtensor_conformance.harness.remote.actor import Actor
from sharedtensor_conformance.harness.remote.actors import ActorProxy
from sharedtensor_conformance.harness.stage.process_ends import ProcessEnds
from sharedtensor_conformance.harness.stage.starting import Isolation, Starter
from sharedtensor_conformance.harness.stage.supervision import Supervision
from sharedtensor_conformance.harness.stage.timeouts import Timeouts
from sharedtensor_conformance.harness.supervisor.supervisor import Supervisor
from sharedtensor_conformance.harness.supervisor.template import Template

SHARED = Isolation(is_isolated=False)
SETTLE_TIMEOUT = 2.0
"""Seconds for live processes to release what they dropped."""


class Stage:
    """An owner, its peers, and the supervisor of them all.

    Args:
        name: the adapter's name.
        implementation: what the adapter declares.
        configuration: the configuration of its cases.
        template: the process from which owners can be forked.
        isolation: of an isolated stage of one case, for tests in which all processes
            start and end.

    Attributes:
        reused: the actors whose processes are reused between cases.
        extra: the peers that were started for one case.
    """

    def __init__(
        self,
        name: str,
        implementation: Implementation,
        configuration: Configuration,
        template: Template,
        isolation: Isolation = SHARED,
    ) -> None:
        self.name = name
        self.implementation = implementation
        self.configuration = configuration
        self.channels = implementation.channels
        self.dtypes = implementation.dtypes
        self.timeouts = Timeouts.of(implementation)
        self.isolation = isolation
        self.owner = ActorProxy(self, "owner")
        self.peer = ActorProxy(self, "peer")
        self.bystander = ActorProxy(self, "bystander")
        self.reused = (self.owner, self.peer, self.bystander)
        self.extra: list[ActorProxy] = []
        self.supervision = Supervision(self, template)
        self.ledger = StageLedger(self.supervision, implementation.manager_pattern)
        self.baseline = Baseline(self.ledger, self.names, lambda: self.kept)
        self.leaks = Leaks()
        self.leak_waits = LeakWaits()
        self.holding_waits = LeakWaits()  # while tensors are held: another matter
        self.ends = ProcessEnds(self)
        self.starter = Starter(self)
        self.isolated: list[Stage] = []

    @property
    def actors(self) -> tuple[ActorProxy, ...]:
        """All actors, whether their processes run or not."""
        return (*self.reused, *self.extra)

    def running(self) -> list[ActorProxy]:
        """Return the reused actors whose processes run."""
        return [actor for actor in self.reused if actor.process.wire]

    def names(self) -> dict[int, str]:
        """Return the names of the reused actors, by pid."""
        return {actor.pid: actor.name for actor in self.reused}

    @property
    def grace(self) -> float:
        """Seconds after which everything that was dropped has to be gone."""
        return self.timeouts.cleanup

    @property
    def kept(self) -> int:
        """The number of unused segments that may be kept for each process."""
        living = [actor for actor in self.actors if actor.is_alive()]
        return self.implementation.kept_segments * len(living)

    @property
    def in_flight(self) -> int:
        """The number of messages that were put and not yet received."""
        return sum(actor.unreceived.total() for actor in self.actors)

    @contextlib.contextmanager
    def fresh(
        self,
        enter: bool = True,
        environment: dict[str, str] | None = None,
        alone: bool = False,
    ) -> Iterator[Stage]:
        """Yield an isolated stage, for tests in which all processes start and end.

        The arguments are those of `Isolation`.
        """
        isolation = Isolation(True, enter, environment or {}, alone)
        listener().environment(environment or {})
        isolated = Stage(
            self.name,
            self.implementation,
            self.configuration,
            self.supervision.template,
            isolation,
        )
        isolated.leak_waits = self.leak_waits  # what stays here stays there
        isolated.holding_waits = self.holding_waits
        self.isolated.append(isolated)
        try:
            yield isolated
        finally:
            isolated.close()
            self.isolated.remove(isolated)

    # What processes hold

    def holdings(self, *actors: ActorProxy) -> Holdings:
        """Return the resources of `actors`, and the existing segments."""
        for actor in actors:
            actor.ensure_started()
        names = {actor.pid: actor.name for actor in actors}
        found = Holdings(self.ledger.read(), names, self.kept)
        found.report(actors)
        return found

    def growth_since(self, before: Holdings, *actors: ActorProxy) -> Growth:
        """Wait until `actors`, and ``/dev/shm``, have no more than `before`.

        Returns the increase at the end.
        """
        listener().waited(True)
        growth = self.leak_waits.wait(
            lambda: self.holdings(*actors).growth_since(before), self.grace
        )
        listener().waited(False)
        return growth

    def check_released(
        self,
        before: Holdings,
        *actors: ActorProxy,
        sentence: str = "",
    ) -> None:
        """Wait until `actors`, and ``/dev/shm``, have no more than `before`.

        Raises:
            LeftBehind: they have more; `sentence` says what was expected, if given.
        """
        growth = self.growth_since(before, *actors)
        if growth:
            told = sentence or "what was dropped has been given back"
            listener().failed("growth", told)
        check.released(growth.failure(sentence))

    def check_descriptors(
        self, before: Holdings, more: Mapping[ActorProxy, int], sentence: str
    ) -> None:
        """Wait until each actor has at most `more` descriptors in addition to `before`.

        Raises:
            LeftBehind: an actor has more; `sentence` says what was expected.
        """
        allowed = {actor.name: count for actor, count in more.items()}
        growth = self.holding_waits.wait(
            lambda: self.holdings(*more).descriptors_since(before, allowed), self.grace
        )
        check.released(growth.failure(sentence))

    @contextlib.contextmanager
    def waiting_in_full(self) -> Iterator[None]:
        """Wait in full for dropped objects during the block, also for known leaks."""
        with self.leak_waits.in_full(), self.holding_waits.in_full():
            yield

    # The end

    def kill_all(self) -> set[str]:
        """Kill all processes and managers at once; return the remaining names."""
        listener().changed(Supervisor.kill_all)
        names = self.supervision.run(Supervisor.kill_all)
        for actor in self.actors:
            actor.reset()
        self.extra.clear()
        return set(names)

    def leave_all(self) -> None:
        """Have all reused processes end normally, the owner last."""
        for actor in reversed(self.running()):
            actor.leave()

    def abandon(self) -> None:
        """Kill all processes, from any thread, so that waits for them end."""
        for stage in (*self.isolated, self):
            stage.supervision.abandon()

    def close(self) -> None:
        """End everything and leave nothing behind."""
        for isolated in list(self.isolated):
            isolated.close()
        for actor in self.actors:
            actor.reset()
        self.extra.clear()
        self.supervision.close()
        self.starter.reset()
        self.baseline.discard()
        self.timeouts.restore()

    # Between cases

    def drop_all(self) -> None:
        """Drop every tensor of the reused actors."""
        for actor in self.running():
            actor.run_in_started(0, Actor.drop_all)

    def end_extra(self) -> None:
        """End the peers that were started for one case, and their channels.

        Messages that they put and nobody received are no longer in flight.
        """
        extra = self.extra
        while extra:
            actor = extra[-1]  # until it has ended, for `close`
            if actor.is_alive():
                actor.leave()
            if self.owner.is_alive():
                self.owner.run_in_started(0, Actor.close_pairs, actor.name)
            actor.reset()
            extra.remove(actor)
            for other in self.actors:
                other.unreceived.pop(actor.name, None)

    def settle(self) -> Growth:
        """Clean up after a case; return the increase of the ledger.

        Temporary files of cases that start their own processes do not count, because a
        process that a test kills cannot remove them.
        """
        counts_files = not self.extra
        self.end_extra()
        self.drop_all()
        if not self.baseline.is_taken:
            self.baseline.take()
        growth = self.leak_waits.wait(
            lambda: self.baseline.growth(counts_files=counts_files),
            min(self.grace, SETTLE_TIMEOUT),
        )
        if growth:
            self.baseline.accept()
        elif not counts_files:
            self.baseline.accept_files()
        return growth
