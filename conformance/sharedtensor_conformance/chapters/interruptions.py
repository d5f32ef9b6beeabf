"""Interrupts a call at each of its places, and checks that nothing is left of it.

A *place* is a point in the call at which Python can run a signal handler. The call is
repeated for each place, and there a handler raises an exception. The module
`interruption_actions` does this in the actor.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sharedtensor_conformance.chapters.interruption_actions import (
    HANDLERS,
    KINDS,
    NOT_RAISED,
    PROPAGATED,
    UNRAISABLE,
    interrupt,
    raise_at_signal,
    restore_handler,
)
from sharedtensor_conformance.harness import check
from sharedtensor_conformance.harness.case.listening import listener
from sharedtensor_conformance.harness.remote.actors import ActorProxy

MAX_PLACES = 600
"""The maximum number of places at which a call is interrupted.

If the call has more places, a random sample is used, with a fixed seed.
"""

COUNTING_RUNS = 3
"""How often the places of the call are counted. The last count is used, because the
first calls do more than later ones, such as imports.
"""


@dataclass
class Interruption:
    """One interrupted call.

    Args:
        kind: what the handler raises, one of `KINDS`.
        place: the number of the place, from 1.
        count: the number of places in the call.
        outcome: what happened to the exception of the handler; `run` sets it.
        where: the position of the place in the code; `run` sets it.
    """

    kind: str
    place: int
    count: int
    outcome: str = NOT_RAISED
    where: str = ""

    def run(self, actor: Any, call: str, *arguments: Any) -> bool:
        """Make `actor` do the call; return whether it ended without the exception.

        Check that nothing swallows the exception of the handler: the call raises it, or
        Python reports it.
        """
        told = actor.run(interrupt, self.kind, self.place, call, *arguments)
        self.outcome, self.where = told
        expected = (
            self.outcome if self.outcome in (UNRAISABLE, NOT_RAISED) else PROPAGATED
        )
        sentence = f"the exception of the handler reaches the caller ({self})"
        check.equal(self.outcome, expected, sentence)
        return self.outcome == NOT_RAISED

    @property
    def judges_leaks(self) -> bool:
        """Whether the rest of the call is judged.

        It is not judged if Python only reported the exception: then the exception ended
        a finalizer, which Python does not run again.
        """
        return self.outcome != UNRAISABLE

    def __str__(self) -> str:
        at = self.where or "behind the last one"
        taken = f", of which {MAX_PLACES} are taken" if self.count > MAX_PLACES else ""
        said = f"{self.kind} at place {self.place} of {self.count}{taken}"
        return f"{said}: {at}"


InterruptAndCheck = Callable[[Interruption], object]
"""A function that interrupts a call, and checks what the call has left."""


def interrupt_at_each_place(
    stage: Any,
    actors: Sequence[Any],
    count_places: Callable[[], int],
    interrupt: InterruptAndCheck,
) -> None:
    """Interrupt a call at each of its places; check that nothing is left of the calls.

    An implementation may make an object once, during any of the calls, and keep it.
    This is not a leak. So the resources are first compared after all calls. Only if
    they have grown, all calls are repeated, and compared after each call.

    Args:
        stage: the stage of the actors.
        actors: the processes whose resources are compared. They drop all their tensors
            after each call.
        count_places: does the call without an interruption; returns its number of
            places.
        interrupt: interrupts the call, and checks what the call has left.

    Raises:
        LeftBehind: the actors have more descriptors, mappings or segments than before.
    """

    def call_and_drop(call: Callable[..., Any], *arguments: Any) -> Any:
        found = call(*arguments)
        for actor in actors:
            actor.drop_all()
        return found

    for actor in actors:
        actor.ensure_started()
    count = [call_and_drop(count_places) for _ in range(COUNTING_RUNS)][-1]
    for kind in KINDS:
        before = stage.holdings(*actors)
        done = [
            Interruption(kind, place, count) for place in places_to_interrupt(count)
        ]
        for one in done:
            call_and_drop(interrupt, one)
        if not stage.growth_since(before, *actors):
            continue
        first = stage.holdings(*actors)
        with stage.waiting_in_full():
            for one in [one for one in done if one.judges_leaks]:
                before = stage.holdings(*actors)
                call_and_drop(interrupt, one)
                said = f"nothing is left of it ({one})"
                stage.check_released(before, *actors, sentence=said)
        stage.check_released(first, *actors, sentence="nothing is left of all calls")


def places_to_interrupt(count: int) -> Sequence[int]:
    """Return the numbers of the places at which to interrupt a call of `count` places.

    Below the limit `MAX_PLACES` these are all places, and ``count + 1``, at which the
    call is not interrupted. Otherwise they are a sample of `MAX_PLACES` places.
    """
    if count < MAX_PLACES:
        return range(1, count + 2)
    return sorted(random.Random(count).sample(range(1, count + 1), MAX_PLACES))


@contextmanager
def raising(actor: ActorProxy, kind: str) -> Iterator[None]:
    """Let a handler raise in an actor during the block, at `send_signal`.

    `kind` is one of the `HANDLERS`.
    """
    handler = actor.run(raise_at_signal, kind)
    try:
        yield
    finally:
        if actor.is_alive():
            actor.run(restore_handler, kind, handler)


def send_signal(actor: ActorProxy, kind: str) -> None:
    """Send an actor the signal of one of the `HANDLERS`."""
    actor.ensure_started()
    number = HANDLERS[kind][0]
    listener().signalled(actor, number)
    os.kill(actor.pid, number)
