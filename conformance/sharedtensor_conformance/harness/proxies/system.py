"""The process of an actor as the operating system sees it, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sharedtensor_conformance.harness.exhaustion import (
    LOW_LIMIT,
    exhaust,
    restore,
    start_interrupting,
    stop_interrupting,
)
from sharedtensor_conformance.harness.in_flight import taking
from sharedtensor_conformance.harness.listening import listener
from sharedtensor_conformance.harness.proxies.calls import Requester


@dataclass
class InterruptionCount:
    """The number of interruptions of a process; known at the end."""

    times: int = 0


class SystemProxy:
    """The process of an actor as the operating system sees it."""

    def __init__(self, actor: Requester) -> None:
        self.actor = actor

    # What it holds

    def descriptors(self) -> int:
        """Return the number of open descriptors of the process."""
        return self._count("descriptors")

    def mappings(self) -> int:
        """Return the number of shared memory mappings of the process."""
        return self._count("mappings")

    def targets(self) -> list[str]:
        """Return the targets of the process's descriptors, for example a pipe."""
        self.actor.ensure_started()
        return self.actor.host.ledger.details(self.actor.pid)["targets"]

    def _count(self, what: str) -> int:
        self.actor.ensure_started()
        found = int(self.actor.host.ledger.account(self.actor.pid)[what])
        listener().read(self.actor, what, found)
        return found

    # What it may take

    @contextmanager
    def exhausted(self, what: str, spare: int = 0) -> Iterator[None]:
        """Leave the process only `spare` more of a resource during the block.

        `what` is ``"descriptors"`` or ``"mappings"`` (an even number of them);
        ``"memory"``, bytes by which its address space may grow; or ``"file_size"``,
        bytes that a file may have.

        Raises:
            NotRun: others have too many descriptors in flight.
        """
        few = LOW_LIMIT if what == "descriptors" else 0
        with taking(few):
            taken = self.actor.run(exhaust, what, spare)
            try:
                yield
            finally:
                if self.actor.is_alive():
                    self.actor.run(restore, taken)

    # Signals

    @contextmanager
    def interrupted(
        self, interval: float = 0.0005, at_most: float | None = None
    ) -> Iterator[InterruptionCount]:
        """Send signals with a Python handler to the process during the block.

        Args:
            interval: the seconds between two signals.
            at_most: seconds after which no more are sent; None for no limit.
        """
        found = InterruptionCount()
        running = self.actor.run(start_interrupting, interval, at_most)
        try:
            yield found
        finally:
            if self.actor.is_alive():
                found.times = self.actor.run(stop_interrupting, running)
