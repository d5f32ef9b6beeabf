"""Reports the actions of a test to a listener, which can record them.

A test acts by remote calls, signals, readings of the ledger and checks. The code for
each of these reports to the listener. In a normal run the listener does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Listener:
    """Receives the actions of a test; this base class ignores them."""

    def environment(self, variables: dict[str, str]) -> None:
        """The processes of a new stage get these environment variables."""

    def attempt_began(self) -> None:
        """A new attempt begins; earlier events belong to another one."""

    def asked(self, actor: Any, message: dict[str, Any]) -> None:
        """A request was sent to a process."""

    def answered(self, actor: Any, message: dict[str, Any], value: Any) -> None:
        """The process answered with `value`."""

    def signalled(self, actor: Any, number: int) -> None:
        """A signal was sent to a process."""

    def managers_signalled(self, number: int) -> None:
        """A signal was sent to the managers."""

    def changed(self, function: Callable[..., Any], *given: Any) -> None:
        """The supervisor calls a function that changes the system for all processes."""

    def read(self, actor: Any, what: str, value: Any) -> None:
        """The ledger was read, or the part of `actor`."""

    def warmed(self, begins: bool) -> None:
        """The suite began or ended the first use of new processes."""

    def waited(self, begins: bool) -> None:
        """A test began or ended a wait for the value that it reads."""

    def failed(self, kind: str, sentence: str) -> None:
        """A check of this kind failed."""


_no_listener = Listener()
_listener = _no_listener


def listener() -> Listener:
    """Return the current listener."""
    return _listener


@contextmanager
def use_listener(new: Listener) -> Iterator[None]:
    """Make `new` the listener during the block."""
    global _listener
    _listener = new
    try:
        yield
    finally:
        _listener = _no_listener
