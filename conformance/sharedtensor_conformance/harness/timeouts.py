"""How long the harness waits for an implementation: what its adapter declares.

A deadline covers the slowest operation of a busy machine. Where an answer was waited
for in vain before, it is not waited for so long again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sharedtensor_conformance.adapter import Implementation

SHORT = 3.0
"""Seconds that an answer is waited for where others were waited for in vain."""


@dataclass
class Timeouts:
    """Seconds that the processes of a stage get.

    Args:
        answer: for the answer to a request.
        start: to start, and to import the implementation.
        cleanup: until everything that was dropped has to be gone.
    """

    answer: float
    start: float
    cleanup: float
    _declared: float = field(init=False)

    def __post_init__(self) -> None:
        self._declared = self.answer

    def shorten(self) -> None:
        """Wait less for answers: others were waited for in vain."""
        self.answer = min(self._declared, SHORT)

    def restore(self) -> None:
        """Wait for answers as long as is declared."""
        self.answer = self._declared

    @classmethod
    def of(cls, implementation: Implementation) -> Timeouts:
        """Return those that an implementation declares."""
        declared = implementation
        return cls(declared.deadline, declared.patience, declared.grace)
