"""Lets somebody listen to what a test does, as it is written down to be repeated.

A test acts by remote calls, signals, readings of the ledger and checks. Those who do
these say so here; in a usual run nobody listens, and nothing is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Listener:
    """Hears what a test does, and does nothing about it."""

    def began_anew(self) -> None:
        """What was told so far belongs to another attempt: the story begins here."""

    def asked(self, actor: Any, message: dict[str, Any]) -> None:
        """A process was asked for something."""

    def answered(self, actor: Any, message: dict[str, Any], value: Any) -> None:
        """It answered; `value` is what its answer brings."""

    def killed(self, actor: Any) -> None:
        """A process was killed."""

    def changed(self, what: str) -> None:
        """What lies below all processes was changed: ``/dev/shm``, or a file in it."""

    def read(self, actor: Any, what: str, value: Any) -> None:
        """The ledger was read, or what `actor` has of it."""

    def waited(self, begins: bool) -> None:
        """A test began to wait for what it reads, or ended it."""

    def failed(
        self, kind: str, sentence: str, actual: Any = None, expected: Any = None
    ) -> None:
        """A check of this kind failed."""


_nobody = Listener()
_listener = _nobody


def listener() -> Listener:
    """Return who listens."""
    return _listener


@contextmanager
def heard_by(somebody: Listener) -> Iterator[None]:
    """Let `somebody` listen during the block."""
    global _listener
    _listener = somebody
    try:
        yield
    finally:
        _listener = _nobody
