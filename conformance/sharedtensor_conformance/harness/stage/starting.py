"""Starts the processes of a stage and prepares them for the first case."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations, count
from typing import TYPE_CHECKING, Any

from sharedtensor_conformance.harness.case.listening import listener
from sharedtensor_conformance.harness.case.outcomes import (
    ActorDied,
    CheckFailed,
    NotRun,
    RemoteRaised,
)
from sharedtensor_conformance.harness.remote.actor import Actor
from sharedtensor_conformance.harness.remote.actors import ActorProxy
from sharedtensor_conformance.harness.remote.calls import Remote
from sharedtensor_conformance.harness.remote.process import Process
from sharedtensor_conformance.harness.supervisor.supervisor import Supervisor

if TYPE_CHECKING:
    from sharedtensor_conformance.harness.stage.stage import Stage


@dataclass(frozen=True)
class Isolation:
    """The differences of an isolated stage from a stage that cases share.

    Args:
        is_isolated: whether there are any.
        enter: whether the adapter's `enter_child` is called in the owner.
        environment: additional environment variables for the processes.
        alone: whether the owner has no child before a test starts one, because a child
            could make it start a manager.
    """

    is_isolated: bool = True
    enter: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    alone: bool = False


class Starter:
    """Starts the owner, its reused peers, and peers for one case.

    Args:
        stage: the stage of the processes. Its ledger begins anew after a reused peer
            was started and used for the first time.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.reset()

    def reset(self) -> None:
        """Reset the state after all processes have ended."""
        self._numbers = count(1)
        self._uses_all_strategies = False

    # Owner and reused peers

    def ensure(self, actor: object) -> None:
        """Start the process of an actor if it has not been started.

        Raises:
            NotRun: the configuration cannot run here.
            ActorDied, DeadlineExceeded, RemoteRaised: it could not be started.
        """
        if not self._stage.supervision.is_started:
            self._start_owner()
        for peer in (self._stage.peer, self._stage.bystander):
            if peer is actor and not peer.process.was_started:
                self._start_reused_peer(peer)

    def start_again(self) -> None:
        """Start another owner after all processes have ended."""
        self._prepare_owner(self._stage.supervision.run(Supervisor.start_again))

    def _start_owner(self) -> None:
        self._prepare_owner(self._stage.supervision.start())

    def _prepare_owner(self, pid: int) -> None:
        owner = self._stage.owner
        isolation = self._stage.isolation
        self._connect(owner, pid, isolation.enter)
        self._use_device(owner)
        names = [actor.name for actor in self._stage.reused]
        pairs = [[*pair] for pair in combinations(names, 2)]
        method = self._stage.configuration.start_method
        owner.run_in_started(0, Actor.make_pairs, pairs, method)
        if isolation.is_isolated and not isolation.alone and method == "fork":
            # Before the owner has tensors: a forked child would inherit them.
            for peer in (self._stage.peer, self._stage.bystander):
                self._start_reused_peer(peer)

    def _start_reused_peer(self, actor: ActorProxy) -> None:
        self._start(actor, None, self._stage.configuration.start_method)
        # An isolated one has no ledger, and whom it makes a client of a manager counts.
        if not self._stage.isolation.is_isolated:
            self._warm_up(actor)
        self._stage.baseline.discard()

    # Peers for one case

    @contextlib.contextmanager
    def new_peer(
        self, arguments: Any, method: str | None, enter: bool, needs_device: bool
    ) -> Iterator[ActorProxy]:
        """Make a peer for one case; it is started when the block is left.

        It has its own channels to the owner.
        """
        owner = self._stage.owner
        owner.ensure_started()
        actor = ActorProxy(self._stage, f"child-{next(self._numbers)}")
        method = method or self._stage.configuration.start_method
        owner.run_in_started(0, Actor.make_pairs, [["owner", actor.name]], method)
        owner.run_in_started(0, Actor.make_peer, actor.name, method, arguments)
        yield actor
        self._stage.extra.append(actor)
        self._start(actor, arguments, method, enter, needs_device)

    # Meeting a process

    def _start(
        self,
        actor: ActorProxy,
        arguments: Any,
        method: str,
        enter: bool = True,
        needs_device: bool = True,
    ) -> None:
        timeout = self._stage.implementation.patience
        pid = self._stage.owner.run_in_started(
            timeout, Actor.start_peer, actor.name, method, arguments
        )
        self._connect(actor, pid, enter)
        if method != "fork":
            self._use_device(actor, needs_device)

    def _connect(self, actor: ActorProxy, pid: int, enter: bool) -> None:
        """Accept the connection of a process that was just started, and prepare it."""
        process = actor.process
        process.open(pid)
        if not self._stage.supervision.private:
            # The names that it makes contain its pid.
            self._stage.supervision.run(Supervisor.add_pid, pid)

        def check_alive() -> None:
            if process.has_ended():
                raise ActorDied(actor.host.ends.describe_end(process, "start"))

        process.wire = self._stage.supervision.accept(actor.name, check_alive)
        if actor is not self._stage.owner:  # which no implementation has started
            self._identify(process)
        actor.run_in_started(self._stage.implementation.patience, Actor.prepare, enter)

    def _identify(self, process: Process) -> None:
        """Check that an actor has its own process, with the pid that was reported.

        Two actors in one process would share everything and prove nothing.

        Raises:
            CheckFailed: that is not so.
        """
        assert process.wire is not None, "it was accepted"
        pid = process.wire.process()
        for other in [actor.process for actor in self._stage.actors]:
            if other is not process and other.pid == pid and other.is_alive():
                raise CheckFailed(
                    f"{process.name} is no process of its own: it runs in the process "
                    f"of {other.name} (pid {pid})"
                )
        if pid != process.pid:
            raise CheckFailed(f"{process.describe_pid()}, but it has {pid}")

    def _use_device(self, actor: ActorProxy, needs_device: bool = True) -> None:
        device = self._stage.configuration.device
        if device == "cpu":
            return
        if why := actor.exchange(0, "operate", "device_unavailable", device):
            if needs_device:
                raise NotRun(why)
            return
        timeout = self._stage.implementation.patience
        actor.exchange(timeout, "operate", "use_device", device)

    # First use

    def _warm_up(self, peer: ActorProxy) -> None:
        """Use everything once that is made lazily, so that the ledger includes it.

        Feeder threads of queues, sockets that pass descriptors, and managers are made
        at the first use and kept; they are not leaks.
        """
        others = [actor for actor in self._stage.running() if actor is not peer]
        listener().warmed(True)
        for channel in self._stage.implementation.channels:
            for other in others:
                self._exchange_tensors(other, peer, channel)
        if self._uses_all_strategies:
            self._exchange_under_all_strategies(peer)
        listener().warmed(False)
        for actor in self._stage.actors:
            actor.unreceived.clear()

    def use_all_strategies(self) -> None:
        """Have the shared processes use every strategy once.

        Only cases that set strategies need that, because a strategy may have its own
        processes.
        """
        if self._uses_all_strategies:
            return
        self._uses_all_strategies = True
        listener().warmed(True)
        for actor in self._stage.running():
            if actor is not self._stage.owner:
                self._exchange_under_all_strategies(actor)
                actor.unreceived.clear()
                self._stage.owner.unreceived.clear()
                self._stage.baseline.discard()
        listener().warmed(False)

    def _exchange_under_all_strategies(self, peer: ActorProxy) -> None:
        if "strategies" in self._stage.implementation.claims:
            for strategy in reversed(self._stage.implementation.strategies):
                self._exchange_under_strategy(strategy, self._stage.owner, peer)

    def _exchange_tensors(
        self, one: ActorProxy, other: ActorProxy, channel: str
    ) -> None:
        for sender, receiver in ((one, other), (other, one)):
            with contextlib.suppress(RemoteRaised):
                tensor = self._make_tensor(sender)
                sender.send(tensor, receiver, channel).drop()
                tensor.drop()

    def _make_tensor(self, actor: ActorProxy) -> Remote:
        """Return a new tensor on the device of this configuration."""
        if self._stage.configuration.device == "cpu":
            return actor.make([1, 0, 1], None, self._stage.implementation.dtypes[0])
        made: Remote = actor.make_on_device([1, 0, 1], "float32")
        return made

    def _exchange_under_strategy(
        self, strategy: str, one: ActorProxy, other: ActorProxy
    ) -> None:
        """Exchange a tensor under another strategy."""
        own = self._stage.configuration.strategy
        with contextlib.suppress(RemoteRaised):
            for actor in (one, other):
                actor.module.set_sharing_strategy(strategy)
            self._exchange_tensors(one, other, self._stage.implementation.channels[0])
        for actor in (one, other):
            actor.module.set_sharing_strategy(own)
