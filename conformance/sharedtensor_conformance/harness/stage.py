"""A stage: one owner with its peers and their supervisor, for one configuration.

The controller's side of the harness, made of parts: what is around the processes
(`supervision`), how they are started (`starter`) and end (`ends`), what they hold
(`ledger`), and what the system below them does (`system`). Actors start when a test
first asks them for something. A stage that was closed can be used again: its actors
get new processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.harness.checks import check
from sharedtensor_conformance.harness.ends import ProcessEnds
from sharedtensor_conformance.harness.leaks import Growth, Leaks, LeakWaits
from sharedtensor_conformance.harness.listening import listener
from sharedtensor_conformance.harness.matrix import Configuration
from sharedtensor_conformance.harness.proxies import ActorProxy
from sharedtensor_conformance.harness.stage_actors import Actors
from sharedtensor_conformance.harness.stage_ledger import (
    Baseline,
    Holdings,
    StageLedger,
)
from sharedtensor_conformance.harness.starting import Isolation, Starter
from sharedtensor_conformance.harness.supervision import Supervision
from sharedtensor_conformance.harness.system_control import SystemControl
from sharedtensor_conformance.harness.template import Template
from sharedtensor_conformance.harness.timeouts import Timeouts

SETTLE_TIMEOUT = 2.0
"""Seconds that processes which live on get to let go of what they dropped."""


class Stage:
    """An owner, its peers, and the supervisor of them all.

    Args:
        name: the adapter's name.
        implementation: what the adapter declares.
        configuration: where the cases run.
        template: the process from which owners can be forked.
        isolation: given for a stage of one case, for tests about the birth and death
            of everybody.
    """

    def __init__(
        self,
        name: str,
        implementation: Implementation,
        configuration: Configuration,
        template: Template,
        isolation: Isolation | None = None,
    ) -> None:
        self.name = name
        self.implementation = implementation
        self.configuration = configuration
        self.channels = implementation.channels
        self.dtypes = implementation.dtypes
        self.timeouts = Timeouts.of(implementation)
        self.actors = Actors(self)
        self.owner, self.peer, self.bystander = self.actors.reused()
        environment = isolation.environment if isolation else {}
        self.supervision = Supervision(
            name, implementation, configuration, environment, template
        )
        self.ledger = StageLedger(self.supervision.ask, implementation.manager_pattern)
        self.baseline = Baseline(self.ledger, self.actors.names, lambda: self.kept)
        self.leaks = Leaks()
        self.leak_waits = LeakWaits()
        self.holding_waits = LeakWaits()  # while tensors are held: another matter
        self.system = SystemControl(self.supervision)
        self.ends = ProcessEnds(self.supervision, self.actors, self.timeouts)
        self.starter = Starter(
            self.supervision,
            self.actors,
            implementation,
            configuration,
            isolation,
            warmed=self.baseline.discard,  # taken anew when the case has ended
        )
        self.isolated: list[Stage] = []

    @property
    def grace(self) -> float:
        """Seconds after which everything that was dropped has to be gone."""
        return self.timeouts.cleanup

    @property
    def kept(self) -> int:
        """How many segments may be there that nothing needs: so many a process."""
        living = [actor for actor in self.actors if actor.is_alive()]
        return self.implementation.kept_segments * len(living)

    @property
    def in_flight(self) -> int:
        """How many messages were put and not received by those for whom they are."""
        return sum(actor.unreceived.total() for actor in self.actors)

    @contextlib.contextmanager
    def fresh(
        self,
        enter: bool = True,
        environment: dict[str, str] | None = None,
        alone: bool = False,
    ) -> Iterator[Stage]:
        """An isolated stage, for tests about the birth and death of everybody.

        The arguments are those of `Isolation`.
        """
        isolation = Isolation(enter, environment or {}, alone)
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
        """Return what `actors` have open, and the segments that are there."""
        for actor in actors:
            actor.ensure_started()
        names = {actor.pid: actor.name for actor in actors}
        found = Holdings(self.ledger.read(), names, self.kept)
        found.tell(actors)
        return found

    def growth_since(self, before: Holdings, *actors: ActorProxy) -> Growth:
        """Wait until `actors`, and ``/dev/shm``, have no more than `before`.

        Return what they have more of in the end.
        """
        listener().waited(True)
        growth = self.leak_waits.wait(
            lambda: self.holdings(*actors).growth_since(before), self.grace
        )
        listener().waited(False)
        return growth

    def check_given_back(
        self,
        before: Holdings,
        *actors: ActorProxy,
        sentence: str = "",
    ) -> None:
        """Wait until `actors`, and ``/dev/shm``, have no more than `before`.

        Raises:
            LeftBehind: they have; it is not so that `sentence` holds, if there is one.
        """
        growth = self.growth_since(before, *actors)
        if growth:
            told = sentence or "what was dropped has been given back"
            listener().failed("growth", told)
        check.given_back(growth.failure(sentence))

    def check_descriptors(
        self, before: Holdings, more: Mapping[ActorProxy, int], sentence: str
    ) -> None:
        """Wait until each actor has at most so many `more` descriptors than `before`.

        Raises:
            LeftBehind: one of them has; it is not so that `sentence` holds.
        """
        allowed = {actor.name: count for actor, count in more.items()}
        growth = self.holding_waits.wait(
            lambda: self.holdings(*more).descriptors_since(before, allowed), self.grace
        )
        check.given_back(growth.failure(sentence))

    @contextlib.contextmanager
    def waiting_in_full(self) -> Iterator[None]:
        """Wait to the end for what was dropped, though its kind is known to stay."""
        with self.leak_waits.in_full(), self.holding_waits.in_full():
            yield

    # The end

    def kill_all(self) -> set[str]:
        """Kill all processes at once, managers too; return the names that are left."""
        listener().changed("kill everything")
        names: list[str] = self.supervision.ask("kill_all")
        for actor in self.actors:
            actor.reset()
        self.actors.extra.clear()
        return set(names)

    def start_again(self) -> None:
        """Start another owner in the surroundings of those that were killed."""
        self.starter.start_again()

    def leave_all(self) -> None:
        """Let all reused processes end normally, the owner last."""
        for actor in reversed(self.actors.running()):
            actor.leave()

    def abandon(self) -> None:
        """Kill everything, from any thread: what waits for these processes ends."""
        for stage in (*self.isolated, self):
            stage.supervision.abandon()

    def close(self) -> None:
        """End everything and leave nothing behind."""
        for isolated in list(self.isolated):
            isolated.close()
        for actor in self.actors:
            actor.reset()
        self.actors.extra.clear()
        self.supervision.close()
        self.starter.reset()
        self.baseline.discard()
        self.timeouts.restore()

    # Between cases

    def drop_all(self) -> None:
        """Drop every tensor of the reused actors."""
        for actor in self.actors.running():
            actor.exchange("drop_all")

    def end_extra(self) -> None:
        """End the peers that were started for one case, and their channels.

        What they had put and nobody has received is under way no more.
        """
        extra = self.actors.extra
        while extra:
            actor = extra[-1]  # until it has ended, for `close`
            if actor.is_alive():
                actor.leave()
            if self.owner.is_alive():
                self.owner.exchange("close_pairs", actor.name)
            actor.reset()
            extra.remove(actor)
            for other in self.actors:
                other.unreceived.pop(actor.name, None)

    def settle(self) -> Growth:
        """Clean up after a case; return what the ledger shows more of than before.

        A process that a test kills cannot remove its temporary files: those of cases
        that start processes of their own do not count.
        """
        counts_files = not self.actors.extra
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
