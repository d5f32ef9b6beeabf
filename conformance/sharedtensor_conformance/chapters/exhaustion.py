"""Exhausts what a process may take, and interrupts it, while a test goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sharedtensor_conformance.chapters.exhaustion_actions import (
    LOW_LIMIT,
    exhaust,
    restore,
    start_interrupting,
    stop_interrupting,
)
from sharedtensor_conformance.harness.case.in_flight import taking
from sharedtensor_conformance.harness.remote.actors import ActorProxy


@dataclass
class InterruptionCount:
    """The number of interruptions of a process; known at the end."""

    times: int = 0


@contextmanager
def exhausted(actor: ActorProxy, what: str, spare: int = 0) -> Iterator[None]:
    """Leave the process only `spare` more of a resource during the block.

    `what` is ``"descriptors"`` or ``"mappings"`` (an even number of them);
    ``"memory"``, bytes by which its address space may grow; ``"file_size"``, bytes that
    a file may have; or ``"threads"``, none.

    Raises:
        NotRun: others have too many descriptors in flight.
    """
    few = LOW_LIMIT if what == "descriptors" else 0
    with taking(few):
        taken = actor.run(exhaust, what, spare)
        try:
            yield
        finally:
            if actor.is_alive():
                actor.run(restore, taken)


@contextmanager
def interrupted(
    actor: ActorProxy, interval: float = 0.0005, at_most: float | None = None
) -> Iterator[InterruptionCount]:
    """Send signals with a Python handler to the process during the block.

    Args:
        actor: the process.
        interval: the seconds between two signals.
        at_most: seconds after which the signals stop; None for no limit.
    """
    found = InterruptionCount()
    running = actor.run(start_interrupting, interval, at_most)
    try:
        yield found
    finally:
        if actor.is_alive():
            found.times = actor.run(stop_interrupting, running)
