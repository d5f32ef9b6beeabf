"""How long the harness waits for an implementation: what its adapter declares."""

from __future__ import annotations

from dataclasses import dataclass

from sharedtensor_conformance.adapter import Implementation


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

    @classmethod
    def of(cls, implementation: Implementation) -> Timeouts:
        """Return those that an implementation declares."""
        declared = implementation
        return cls(declared.deadline, declared.patience, declared.grace)
