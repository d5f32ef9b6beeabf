"""Interrupts calls of the implementation by exceptions of signal handlers.

Python runs signal handlers in the main thread, at the start of a Python function and
after the return of a C function. At one such place of a call, chosen by its number, a
signal is sent to this thread, and its handler raises an exception. So a case interrupts
a call at each of its places, and at the same places when it is repeated, which a timer
cannot do. If the implementation blocks the signal, the handler runs when the signal is
unblocked. If the implementation handles or ignores the signal, nothing is raised.

Handlers also run at the jump back of a loop; these places are left out. Places in a
method `__del__` are left out, too, except where a tensor is dropped: Python ends the
method, reports the exception and continues the call. The report shows other functions
that Python calls in this way.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from sharedtensor_conformance.harness.remote.actor import Actor
from sharedtensor_conformance.harness.remote.threads import in_a_child

HANDLER_EVENTS = ("call", "c_return")
"""The events of `sys.setprofile` at which a signal handler can run."""

FINALIZER = "__del__"

DEPTH_CHANGES = {"call": 1, "return": -1}
"""The change of the call depth at an event of a Python function."""

PROPAGATED = "the call raises it"

UNRAISABLE = "Python reports it"

SUPPRESSED = "nobody is told of it"

NOT_RAISED = "it is not raised"
"""What can happen to the exception of the handler. Or the call raises another one
instead.
"""

HANDLER_MESSAGE = "raised by a signal handler of the suite"
"""The message of an exception that a handler raises."""


class Interrupt(BaseException):
    """An exception of a handler that interrupts a program, like `KeyboardInterrupt`."""


KINDS: dict[str, tuple[signal.Signals, type[BaseException]]] = {
    "interrupt": (signal.SIGINT, Interrupt),
    "timeout": (signal.SIGALRM, TimeoutError),
}
"""The signals, and the exceptions of their handlers. The handler of a watchdog raises
an `OSError`, like the system.
"""


HANDLERS: dict[str, tuple[signal.Signals, type[BaseException]]] = {
    "keyboard interrupt": (signal.SIGINT, KeyboardInterrupt),
    **KINDS,
}
"""The signals and exceptions for calls that wait, that of Python's own handler too."""


class InterruptionPoints:
    """Counts the places in a call, and interrupts it at the place with a number.

    Args:
        number: the number of the place, from 1; 0 for none.
        kind: one of the `KINDS`.
        in_finalizers: whether the places in methods `__del__` count.
    """

    def __init__(
        self, number: int = 0, kind: str = "interrupt", in_finalizers: bool = False
    ) -> None:
        self.number = number
        self.in_finalizers = in_finalizers
        self.signal, self.exception = KINDS[kind]
        self.passed = 0
        self.finalizer_depth = 0
        self.where = ""
        self.raised: BaseException | None = None
        self.is_reported = False

    def during(self, call: Callable[[], object]) -> str:
        """Execute a call; return what happened to the exception of the handler.

        Other exceptions of the call are raised.
        """
        handler = signal.signal(self.signal, self._raise)
        hook, sys.unraisablehook = sys.unraisablehook, self._at_unraisable
        try:
            return self._outcome_of(call)
        finally:
            sys.unraisablehook = hook
            if self.signal in signal.sigpending():  # the signal is still blocked
                signal.sigtimedwait([self.signal], 0)
            signal.signal(self.signal, handler)
            self.raised = None  # its traceback keeps the objects of the call alive

    def _outcome_of(self, call: Callable[[], object]) -> str:
        sys.setprofile(self._at_event)
        try:
            call()
        except BaseException as error:
            if error is self.raised:
                return PROPAGATED
            if self.raised is None:
                raise
            return f"the call raises {type(error).__name__} instead"
        finally:
            sys.setprofile(None)
        if self.is_reported:
            return UNRAISABLE
        return NOT_RAISED if self.raised is None else SUPPRESSED

    def _at_event(self, frame: FrameType, event: str, what: object) -> None:
        if frame.f_code.co_name == FINALIZER and event in DEPTH_CHANGES:
            self.finalizer_depth += DEPTH_CHANGES[event]
        counts = self.in_finalizers or not self.finalizer_depth
        if event in HANDLER_EVENTS and counts:
            self.passed += 1
            if self.passed == self.number:
                sys.setprofile(None)
                self.where = _describe_position(frame, what)
                signal.raise_signal(self.signal)

    def _raise(self, *ignored: object) -> None:
        self.raised = self.exception(HANDLER_MESSAGE)
        raise self.raised

    def _at_unraisable(self, unraisable: Any) -> None:
        if unraisable.exc_value is self.raised:
            self.is_reported = True
            self.raised = None  # its traceback keeps the finalized object alive
        else:
            sys.__unraisablehook__(unraisable)


def _describe_position(frame: FrameType, what: object) -> str:
    """Return the position of a place in the code."""
    code = frame.f_code
    called = getattr(what, "__qualname__", None)
    does = f"has called {called}" if called else "begins"
    file = os.path.basename(code.co_filename)
    return f"{code.co_qualname} {does}, {file}, line {frame.f_lineno}"


def _share(actor: Actor, tensor: Any) -> Callable[[], object]:
    return lambda: actor.operations.share(tensor)


def _share_module(actor: Actor, module: Any) -> Callable[[], object]:
    return lambda: actor.operations.share_module(module)


def _put(actor: Actor, to: str, channel: str, payload: Any) -> Callable[[], object]:
    own = actor.pair_with(to, channel).of(actor.name, channel)
    encode = actor.operations.encode

    def put() -> None:
        many = isinstance(payload, list)
        message = [encode(each) for each in payload] if many else encode(payload)
        own.put(message)

    return put


def _get(actor: Actor, sender: str, channel: str) -> Callable[[], object]:
    own = actor.pair_with(sender, channel).of(sender, channel)
    decode = actor.operations.decode

    def get() -> None:
        decode(own.get())

    return get


CALLS: dict[str, Callable[..., Callable[[], object]]] = {
    "share": _share,
    "share_module": _share_module,
    "put": _put,
    "get": _get,
}
"""The calls that can be interrupted, by name; each returns a function."""


def count_places(actor: Actor, call: str, *arguments: Any) -> int:
    """Execute a call; return the number of its places."""
    places = InterruptionPoints()
    do = CALLS[call](actor, *arguments)
    actor.by_implementation(lambda: places.during(do))
    return places.passed


def interrupt(
    actor: Actor, kind: str, number: int, call: str, *arguments: Any
) -> list[str]:
    """Interrupt a call at a place.

    Returns:
        What happened to the exception, and where it was raised.
    """
    places = InterruptionPoints(number, kind)
    do = CALLS[call](actor, *arguments)
    return [actor.by_implementation(lambda: places.during(do)), places.where]


def interrupt_drops(actor: Actor, kind: str, values: list[int]) -> int:
    """Share tensors and drop them, each interrupted at the next place; then one more.

    Returns:
        The number of places.
    """
    number = 1
    while True:
        places = InterruptionPoints(number, kind, in_finalizers=True)
        held = [actor.call("make", values, (len(values),), "int32")]
        actor.call("share", held[0])
        outcome = places.during(held.clear)
        if outcome == NOT_RAISED:
            return number - 1
        number += 1


def raise_at_signal(actor: Actor, kind: str) -> Any:
    """Let the handler of a signal raise: one of the `HANDLERS`.

    Returns:
        The handler before it, for `restore_handler`.
    """
    number, exception = HANDLERS[kind]

    def handle(*ignored: object) -> None:
        raise exception(HANDLER_MESSAGE)

    return signal.signal(number, handle)


def restore_handler(actor: Actor, kind: str, handler: Any) -> None:
    """Restore the handler that `raise_at_signal` returned."""
    signal.signal(HANDLERS[kind][0], handler)


def write_in_child(actor: Actor, tensors: list[Any], value: int) -> list[list[Any]]:
    """Make a forked child write to the last element of each tensor.

    Returns:
        For each tensor: what `is_shared` returns, its first and last values before the
        write of the child, and those after it.
    """
    said = [actor.call("is_shared", tensor) for tensor in tensors]
    before = [_first_and_last(actor, tensor) for tensor in tensors]
    in_a_child(actor, write_last, tensors, value)
    after = [_first_and_last(actor, tensor) for tensor in tensors]
    return [list(found) for found in zip(said, before, after, strict=True)]


def write_last(actor: Actor, tensors: list[Any], value: int) -> None:
    """Write to the last element of each tensor."""
    for tensor in tensors:
        actor.call("write", tensor, _last_index(actor, tensor), value)


def _first_and_last(actor: Actor, tensor: Any) -> list[Any]:
    return [actor.call("read", tensor, at) for at in ((0,), _last_index(actor, tensor))]


def _last_index(actor: Actor, tensor: Any) -> tuple[int]:
    return (actor.call("shape", tensor)[0] - 1,)
