"""Starts the processes of a stage and prepares them for the first case."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.harness.actor import Actor
from sharedtensor_conformance.harness.listening import listener
from sharedtensor_conformance.harness.matrix import Configuration
from sharedtensor_conformance.harness.outcomes import (
    ActorDied,
    CheckFailed,
    NotRun,
    RemoteRaised,
)
from sharedtensor_conformance.harness.process import Process
from sharedtensor_conformance.harness.proxies import ActorProxy, Remote
from sharedtensor_conformance.harness.stage_actors import REUSED_PEERS, Actors
from sharedtensor_conformance.harness.supervision import Supervision
from sharedtensor_conformance.harness.supervisor import Supervisor


@dataclass(frozen=True)
class Isolation:
    """The differences of an isolated stage from a stage that cases share.

    Args:
        enter: whether the adapter's `enter_child` is called in the owner.
        environment: additional environment variables for the processes.
        alone: whether the owner has no child before a test starts one, because a child
            could make it start a manager.
    """

    enter: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    alone: bool = False


class Starter:
    """Starts the owner, its reused peers, and peers for one case.

    Args:
        supervision: starts the owner, and accepts connections.
        actors: the actors of the processes.
        implementation: what the adapter declares.
        configuration: the configuration of the processes.
        isolation: the differences of an isolated stage.
        on_warmed: called after a reused peer was started and used for the first time.
    """

    def __init__(
        self,
        supervision: Supervision,
        actors: Actors,
        implementation: Implementation,
        configuration: Configuration,
        isolation: Isolation | None,
        on_warmed: Callable[[], None],
    ) -> None:
        self._supervision = supervision
        self._actors = actors
        self._implementation = implementation
        self._configuration = configuration
        self._isolation = isolation
        self._on_warmed = on_warmed
        self._numbers = count(1)
        self._uses_all_strategies = False

    def reset(self) -> None:
        """Reset the state after all processes have ended."""
        self._numbers = count(1)
        self._uses_all_strategies = False

    # Owner and reused peers

    def ensure(self, process: Process) -> None:
        """Start the process of an actor if it has not been started.

        Raises:
            NotRun: the configuration cannot run here.
            ActorDied, DeadlineExceeded, RemoteRaised: it could not be started.
        """
        if not self._supervision.is_started:
            self._start_owner()
        if process.name in REUSED_PEERS and not process.was_started:
            self._start_reused_peer(self._actors.named(process.name))

    def start_again(self) -> None:
        """Start another owner after all processes have ended."""
        self._prepare_owner(self._supervision.run(Supervisor.start_again))

    def _start_owner(self) -> None:
        self._prepare_owner(self._supervision.start())

    def _prepare_owner(self, pid: int) -> None:
        owner = self._actors.owner
        enter = self._isolation.enter if self._isolation else True
        self._connect(owner, pid, enter)
        self._use_device(owner)
        names = ("owner", *REUSED_PEERS)
        pairs = [[a, b] for i, a in enumerate(names) for b in names[i + 1 :]]
        method = self._configuration.start_method
        owner.run_in_started(0, Actor.make_pairs, pairs, method)
        if self._isolation and not self._isolation.alone and method == "fork":
            # Before the owner has tensors: a forked child would inherit them.
            for name in REUSED_PEERS:
                self._start_reused_peer(self._actors.named(name))

    def _start_reused_peer(self, actor: ActorProxy) -> None:
        self._start(actor, None, self._configuration.start_method)
        if not self._isolation:  # it has no ledger, and whom it makes a client counts
            self._warm_up(actor)
        self._on_warmed()

    # Peers for one case

    @contextlib.contextmanager
    def new_peer(
        self, arguments: Any, method: str | None, enter: bool, needs_device: bool
    ) -> Iterator[ActorProxy]:
        """Make a peer for one case; it is started when the block is left.

        It has its own channels to the owner.
        """
        owner = self._actors.owner
        owner.ensure_started()
        actor = self._actors.new(f"child-{next(self._numbers)}")
        method = method or self._configuration.start_method
        owner.run_in_started(0, Actor.make_pairs, [["owner", actor.name]], method)
        owner.run_in_started(0, Actor.make_peer, actor.name, method, arguments)
        yield actor
        self._actors.extra.append(actor)
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
        timeout = self._implementation.patience
        pid = self._actors.owner.run_in_started(
            timeout, Actor.start_peer, actor.name, method, arguments
        )
        self._connect(actor, pid, enter)
        if method != "fork":
            self._use_device(actor, needs_device)

    def _connect(self, actor: ActorProxy, pid: int, enter: bool) -> None:
        """Accept the connection of a process that was just started, and prepare it."""
        process = actor.process
        process.open(pid)
        if not self._supervision.private:
            # The names that it makes contain its pid.
            self._supervision.run(Supervisor.add_pid, pid)

        def check_alive() -> None:
            if process.has_ended():
                raise ActorDied(actor.host.ends.describe_end(process, "start"))

        process.wire = self._supervision.accept(actor.name, check_alive)
        if actor is not self._actors.owner:  # which no implementation has started
            self._identify(process)
        actor.run_in_started(self._implementation.patience, Actor.prepare, enter)

    def _identify(self, process: Process) -> None:
        """Check that an actor has its own process, with the pid that was reported.

        Two actors in one process would share everything and prove nothing.

        Raises:
            CheckFailed: that is not so.
        """
        assert process.wire is not None, "it was accepted"
        pid = process.wire.process()
        for other in [actor.process for actor in self._actors]:
            if other is not process and other.pid == pid and other.is_alive():
                raise CheckFailed(
                    f"{process.name} is no process of its own: it runs in the process "
                    f"of {other.name} (pid {pid})"
                )
        if pid != process.pid:
            raise CheckFailed(f"{process.describe_pid()}, but it has {pid}")

    def _use_device(self, actor: ActorProxy, needs_device: bool = True) -> None:
        device = self._configuration.device
        if device == "cpu":
            return
        if why := actor.exchange(0, "operate", "device_unavailable", device):
            if needs_device:
                raise NotRun(why)
            return
        timeout = self._implementation.patience
        actor.exchange(timeout, "operate", "use_device", device)

    # First use

    def _warm_up(self, peer: ActorProxy) -> None:
        """Use everything once that is made lazily, so that the ledger includes it.

        Feeder threads of queues, sockets that pass descriptors, and managers are made
        at the first use and kept; they are not leaks.
        """
        others = [actor for actor in self._actors.running() if actor is not peer]
        listener().warmed(True)
        for channel in self._implementation.channels:
            for other in others:
                self._exchange_tensors(other, peer, channel)
        if self._uses_all_strategies:
            self._exchange_under_all_strategies(peer)
        listener().warmed(False)
        for actor in self._actors:
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
        for actor in self._actors.running():
            if actor.name in REUSED_PEERS:
                self._exchange_under_all_strategies(actor)
                actor.unreceived.clear()
                self._actors.owner.unreceived.clear()
                self._on_warmed()
        listener().warmed(False)

    def _exchange_under_all_strategies(self, peer: ActorProxy) -> None:
        if "strategies" in self._implementation.claims:
            for strategy in reversed(self._implementation.strategies):
                self._exchange_under_strategy(strategy, self._actors.owner, peer)

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
        if self._configuration.device == "cpu":
            return actor.make([1, 0, 1], None, self._implementation.dtypes[0])
        made: Remote = actor.make_on_device([1, 0, 1], "float32")
        return made

    def _exchange_under_strategy(
        self, strategy: str, one: ActorProxy, other: ActorProxy
    ) -> None:
        """Exchange a tensor under another strategy."""
        own = self._configuration.strategy
        with contextlib.suppress(RemoteRaised):
            for actor in (one, other):
                actor.module.set_sharing_strategy(strategy)
            self._exchange_tensors(one, other, self._implementation.channels[0])
        for actor in (one, other):
            actor.module.set_sharing_strategy(own)
