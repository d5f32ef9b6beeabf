"""The time limits of the harness, which the adapter declares.

A deadline is long enough for the slowest operation on a busy machine. After an answer
did not come in time, the harness waits less for later answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sharedtensor_conformance.adapter import Implementation

SHORT_ANSWER_TIMEOUT = 3.0
"""Seconds to wait for an answer after earlier waits were in vain."""


@dataclass
class Timeouts:
    """The time limits for the processes of a stage, in seconds.

    Args:
        answer: for the answer to a request.
        start: for starting a process and importing the implementation.
        cleanup: until everything that was dropped has to be gone.
    """

    answer: float
    start: float
    cleanup: float
    _declared: float = field(init=False)

    def __post_init__(self) -> None:
        self._declared = self.answer

    def shorten(self) -> None:
        """Wait less for answers, because earlier waits were in vain."""
        self.answer = min(self._declared, SHORT_ANSWER_TIMEOUT)

    def restore(self) -> None:
        """Wait for answers as long as declared."""
        self.answer = self._declared

    @classmethod
    def of(cls, implementation: Implementation) -> Timeouts:
        """Return the time limits that an adapter declares."""
        declared = implementation
        return cls(declared.deadline, declared.patience, declared.grace)
