"""The actors of a stage: owner, peer and bystander, and peers for one case."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sharedtensor_conformance.harness.proxies import ActorProxy

if TYPE_CHECKING:
    from sharedtensor_conformance.harness.stage import Stage

REUSED_PEERS = ("peer", "bystander")
"""The peers that are reused between cases."""


class Actors:
    """The actors of a stage, whether their processes run or not."""

    def __init__(self, host: Stage) -> None:
        self._host = host
        self.owner = self.new("owner")
        self.peer = self.new("peer")
        self.bystander = self.new("bystander")
        self.extra: list[ActorProxy] = []

    def __iter__(self) -> Iterator[ActorProxy]:
        return iter((*self.reused(), *self.extra))

    def new(self, name: str) -> ActorProxy:
        """Return a new actor without a process, which is not added to the actors."""
        return ActorProxy(self._host, name)

    def reused(self) -> tuple[ActorProxy, ...]:
        """Return the actors whose processes are reused between cases."""
        return self.owner, self.peer, self.bystander

    def running(self) -> list[ActorProxy]:
        """Return the actors whose processes run."""
        return [actor for actor in self.reused() if actor.process.wire]

    def named(self, name: str) -> ActorProxy:
        """Return one of them by its name."""
        return {actor.name: actor for actor in self.reused()}[name]

    def names(self) -> dict[int, str]:
        """Return their names, by pid."""
        return {actor.pid: actor.name for actor in self.reused()}
