"""The executor of `concurrent.futures`, for tests that use one.

It has its own module because its import takes a tenth of the start of an actor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any


class Executor(ProcessPoolExecutor):
    """An executor of the standard library, with the names that pools have."""

    def apply(
        self,
        function: Callable[..., Any],
        arguments: Sequence[Any],
        named: dict[str, Any] | None = None,
    ) -> Any:
        """Submit a call and wait for its result."""
        return self.submit(function, *arguments, **(named or {})).result()

    def close(self) -> None:
        """Accept no call any more."""
        self.shutdown(wait=False)

    def join(self) -> None:
        """Wait for the workers' end."""
        self.shutdown(wait=True)
