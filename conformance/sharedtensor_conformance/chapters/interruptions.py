"""Stories of calls that are interrupted, at one place after another."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sharedtensor_conformance.harness import check
from sharedtensor_conformance.harness.interruption import (
    KINDS,
    NOT_RAISED,
    REPORTED,
    TOLD,
)

PLACES = 600
"""Of more places in a call, so many are taken, by chance and always the same."""

CALLS_BEFORE = 3
"""In the first ones more is done than in others: something is imported, or started."""


@dataclass
class Interruption:
    """One call that is interrupted at a place.

    Args:
        kind: what the handler raises, one of `KINDS`.
        place: the number of the place.
        count: how many places the call has.
    """

    kind: str
    place: int
    count: int
    outcome: str = NOT_RAISED
    where: str = ""

    def of(self, actor: Any, call: str, *arguments: Any) -> bool:
        """Let an actor do the call; return whether that came to its end.

        The exception comes out of it, or Python has reported it.
        """
        told = actor.request(
            "act", "interrupt", self.kind, self.place, call, *arguments
        )
        self.outcome, self.where = told
        expected = self.outcome if self.outcome in (REPORTED, NOT_RAISED) else TOLD
        sentence = f"the exception of the handler reaches the caller ({self})"
        check.equal(self.outcome, expected, sentence)
        return self.outcome == NOT_RAISED

    @property
    def is_judged(self) -> bool:
        """Whether it is none of a finalizer, which Python does not finish."""
        return self.outcome != REPORTED

    def __str__(self) -> str:
        at = self.where or "behind the last one"
        taken = f", of which {PLACES} are taken" if self.count > PLACES else ""
        said = f"{self.kind} at place {self.place} of {self.count}{taken}"
        return f"{said}: {at}"


Interrupting = Callable[[Interruption], object]
"""Interrupts a call, and judges what it has left."""


def interrupt_at_each_place(
    stage: Any,
    actors: Sequence[Any],
    places: Callable[[], int],
    interrupt: Interrupting,
) -> None:
    """Interrupt a call at all of its places; when that is over nothing is left of it.

    What an implementation makes once, for all interrupted calls, is not left: so where
    there is more, it is done again, and looked at after each place.

    Args:
        stage: where all of it happens.
        actors: those that are looked at, and drop everything each time.
        places: does the call; returns how many places it has.
        interrupt: interrupts it, and judges what it has left.
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
                stage.check_given_back(before, *actors, sentence=said)
        stage.check_given_back(first, *actors, sentence="nothing is left of all calls")


def places_up_to(count: int) -> Sequence[int]:
    """Return numbers of places in a call that has `count`, and one behind the last."""
    if count < PLACES:
        return range(1, count + 2)
    return sorted(random.Random(count).sample(range(1, count + 1), PLACES))
