"""Calls of the implementation that an exception of a signal handler interrupts.

Python runs the handlers of signals in the main thread where a function of Python is
entered, and where a function of C has come back to one of Python. Here an exception is
raised at one such place of a call, chosen by its number: so a case interrupts a call at
all of its places, and at the same ones when it is repeated, which no real signal does.
(Handlers run where a loop goes round, too; such places are left out. So are those in a
finalizer: Python ends that, reports the exception, and the call goes on.)

Each action gets the actor first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

AT_EVERY = ("call", "c_return")
"""The events of `sys.setprofile` at the places where a handler can run."""

FINALIZER = "__del__"
STEPS = {"call": 1, "return": -1}
"""By how many functions more one is in, after an event of a function of Python."""


class Interrupt(BaseException):
    """What the handler of the signal raises."""


class Places:
    """Counts the places in a call, and raises at the one with a number, from 1 on."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.passed = 0
        self.finalizers = 0

    def during(self, call: Callable[[], object]) -> bool:
        """Do a call; return whether it was interrupted, and passed that on."""
        sys.setprofile(self._at_event)
        try:
            call()
        except Interrupt:
            return True
        finally:
            sys.setprofile(None)
        return False

    def _at_event(self, frame: FrameType, event: str, what: object) -> None:
        if frame.f_code.co_name == FINALIZER and event in STEPS:
            self.finalizers += STEPS[event]
        if event in AT_EVERY and not self.finalizers:
            self.passed += 1
            if self.passed == self.number:
                sys.setprofile(None)
                raise Interrupt


def places_of_share(actor: Any, tensor: Any) -> int:
    """Share a tensor; return how many places that call has."""
    return _count(actor, _share(actor, tensor))


def share_interrupted(actor: Any, place: int, tensor: Any) -> bool:
    """Share a tensor and be interrupted there; return whether that was told."""
    return _interrupt(actor, place, _share(actor, tensor))


def places_of_put(actor: Any, tensor: Any, to: str, channel: str) -> int:
    """Put a tensor; return how many places that call has."""
    return _count(actor, _put(actor, tensor, to, channel))


def put_interrupted(actor: Any, place: int, tensor: Any, to: str, channel: str) -> bool:
    """Put a tensor and be interrupted there; return whether that was told."""
    return _interrupt(actor, place, _put(actor, tensor, to, channel))


def _share(actor: Any, tensor: Any) -> Callable[[], object]:
    return partial(actor.operations.share, tensor)


def _put(actor: Any, tensor: Any, to: str, channel: str) -> Callable[[], object]:
    pair = actor.pair_with(to, channel)
    encode = actor.operations.encode
    return lambda: pair.put(actor.name, channel, encode(tensor))


def _count(actor: Any, call: Callable[[], object]) -> int:
    places = Places()
    actor.by_implementation(partial(places.during, call))
    return places.passed


def _interrupt(actor: Any, place: int, call: Callable[[], object]) -> bool:
    interrupted: bool = actor.by_implementation(partial(Places(place).during, call))
    return interrupted
