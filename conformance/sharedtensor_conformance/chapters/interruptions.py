"""Interrupts a call at each of its places, and checks that nothing is left of it.

A *place* is a point in the call at which Python can run a signal handler. The call is
repeated for each place, and there a handler raises an exception. The module
``harness/interruption.py`` does this in the actor.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sharedtensor_conformance.harness import check
from sharedtensor_conformance.harness.interruption import (
    KINDS,
    NOT_RAISED,
    PROPAGATED,
    UNRAISABLE,
)

PLACES = 600
"""The maximum number of places at which a call is interrupted.

If the call has more places, a random sample is used, with a fixed seed.
"""

CALLS_BEFORE = 3
"""How often the places of the call are counted. The last count is used, because the
first calls do more than later ones, such as imports."""


@dataclass
class Interruption:
    """One interrupted call.

    Args:
        kind: what the handler raises, one of `KINDS`.
        place: the number of the place, from 1.
        count: the number of places in the call.
        outcome: what happened to the exception of the handler; `of` sets it.
        where: the position of the place in the code; `of` sets it.
    """

    kind: str
    place: int
    count: int
    outcome: str = NOT_RAISED
    where: str = ""

    def of(self, actor: Any, call: str, *arguments: Any) -> bool:
        """Make `actor` do the call; return whether it ended without the exception.

        Check that nothing swallows the exception of the handler: the call raises it, or
        Python reports it.
        """
        told = actor.request(
            "act", "interrupt", self.kind, self.place, call, *arguments
        )
        self.outcome, self.where = told
        expected = (
            self.outcome if self.outcome in (UNRAISABLE, NOT_RAISED) else PROPAGATED
        )
        sentence = f"the exception of the handler reaches the caller ({self})"
        check.equal(self.outcome, expected, sentence)
        return self.outcome == NOT_RAISED

    @property
    def is_judged(self) -> bool:
        """Whether the rest of the call is judged.

        It is not judged if Python only reported the exception: then the exception ended
        a finalizer, which Python does not run again.
        """
        return self.outcome != UNRAISABLE

    def __str__(self) -> str:
        at = self.where or "behind the last one"
        taken = f", of which {PLACES} are taken" if self.count > PLACES else ""
        said = f"{self.kind} at place {self.place} of {self.count}{taken}"
        return f"{said}: {at}"


Interrupting = Callable[[Interruption], object]
"""A function that interrupts a call, and checks what the call has left."""


def interrupt_at_each_place(
    stage: Any,
    actors: Sequence[Any],
    places: Callable[[], int],
    interrupt: Interrupting,
) -> None:
    """Interrupt a call at each of its places; check that nothing is left of the calls.

    An implementation may make an object once, during any of the calls, and keep it.
    This is not a leak. So the resources are first compared after all calls. Only if
    they have grown, all calls are repeated, and compared after each call.

    Args:
        stage: the stage of the actors.
        actors: the processes whose resources are compared. They drop all their tensors
            after each call.
        places: does the call without an interruption; returns its number of places.
        interrupt: interrupts the call, and checks what the call has left.

    Raises:
        LeftBehind: the actors have more descriptors, mappings or segments than before.
    """

    def dropping(done: Callable[..., Any], *arguments: Any) -> Any:
        found = done(*arguments)
        for actor in actors:
            actor.drop_all()
        return found

    for actor in actors:
        actor.ensure_started()
    count = [dropping(places) for _ in range(CALLS_BEFORE)][-1]
    for kind in KINDS:
        before = stage.holdings(*actors)
        done = [Interruption(kind, place, count) for place in places_up_to(count)]
        for one in done:
            dropping(interrupt, one)
        if not stage.growth_since(before, *actors):
            continue
        first = stage.holdings(*actors)
        with stage.waiting_in_full():
            for one in [one for one in done if one.is_judged]:
                before = stage.holdings(*actors)
                dropping(interrupt, one)
                said = f"nothing is left of it ({one})"
                stage.check_released(before, *actors, sentence=said)
        stage.check_released(first, *actors, sentence="nothing is left of all calls")


def places_up_to(count: int) -> Sequence[int]:
    """Return the numbers of the places at which to interrupt a call of `count` places.

    Below the limit `PLACES` these are all places, and ``count + 1``, at which the call
    is not interrupted. Otherwise they are a sample of `PLACES` places.
    """
    if count < PLACES:
        return range(1, count + 2)
    return sorted(random.Random(count).sample(range(1, count + 1), PLACES))
