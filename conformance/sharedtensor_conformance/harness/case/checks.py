"""The checks of a test. Each check is counted, and a test without checks is an error.

`eventually` is the only function of the suite that waits for time. It is used only for
cleanup: order always comes from messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sharedtensor_conformance.harness.case.answer_waits import answer_waits
from sharedtensor_conformance.harness.case.listening import listener
from sharedtensor_conformance.harness.case.outcomes import (
    CheckFailed,
    LeftBehind,
    RemoteError,
    RemoteRaised,
)
from sharedtensor_conformance.harness.kernel.process_tree import (
    prolonged,
    said_of_limit,
)
from sharedtensor_conformance.harness.kernel.process_tree import (
    wait_until as wait_until,
)

SHOWN_CHARACTERS = 300
"""How many characters of a value are shown in evidence."""


@dataclass
class Tally:
    """The number of checks and of remote calls of a case."""

    checks: int = 0
    remote_calls: int = 0

    def reset(self) -> None:
        """Reset the counts at the beginning of a case."""
        self.checks = self.remote_calls = 0


tally = Tally()


def shortened_repr(value: object) -> str:
    """Return `value` as text for evidence, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


class Check:
    """Checks conditions; each has a sentence that describes the expected state."""

    def __call__(self, condition: object, sentence: str) -> None:
        """Check that `condition` is true.

        Raises:
            CheckFailed: the condition is false.
        """
        tally.checks += 1
        if not condition:
            listener().failed("condition", sentence)
            raise CheckFailed(f"not so: {sentence}")

    def equal(self, actual: object, expected: object, sentence: str) -> None:
        """Check that `actual` equals `expected`."""
        tally.checks += 1
        if actual != expected:
            listener().failed("equality", sentence)
            said = f"got {shortened_repr(actual)}, not {shortened_repr(expected)}"
            raise CheckFailed(f"not so: {sentence}: {said}")

    def released(self, failure: LeftBehind | None) -> None:
        """Check that nothing was left behind: that there is no `failure`."""
        tally.checks += 1
        if failure is not None:
            raise failure

    def close(
        self, actual: float, expected: float, sentence: str, tolerance: float = 1e-6
    ) -> None:
        """Check that two numbers differ by at most `tolerance`."""
        tally.checks += 1
        if not abs(actual - expected) <= tolerance:
            listener().failed("equality", sentence)
            raise CheckFailed(f"not so: {sentence}: got {actual!r}, not {expected!r}")


check = Check()


class Refusal:
    """The exception that a `refusal` block caught. There is one once the block ends."""

    error: RemoteError


@contextmanager
def refusal(sentence: str) -> Iterator[Refusal]:
    """Check that the block raises an exception of the implementation.

    Raises:
        CheckFailed: the block raised nothing. A crash or a hang is raised unchanged.
    """
    tally.checks += 1
    caught = Refusal()
    try:
        yield caught
    except RemoteRaised as raised:
        caught.error = raised.error
        return
    listener().failed("refusal", sentence)
    raise CheckFailed(f"not so: {sentence}: nothing was raised")


def attempt(action: Callable[[], Any]) -> tuple[Any, RemoteError | None]:
    """Return the result of `action`, or the implementation's exception."""
    try:
        return action(), None
    except RemoteRaised as raised:
        return None, raised.error


def eventually(
    predicate: Callable[[], object],
    sentence: str,
    within: float,
    found: Callable[[], object] | None = None,
) -> None:
    """Check that `predicate` becomes true within a time limit.

    Args:
        predicate: the condition, which is evaluated repeatedly.
        sentence: describes the expected state.
        within: the time limit in seconds, longer on an overloaded machine.
        found: returns the actual state, for the evidence.

    Raises:
        CheckFailed: the predicate did not become true.
    """
    tally.checks += 1
    listener().waited(True)
    given = prolonged(within)
    came = wait_until(predicate, given)
    listener().waited(False)
    if not came:
        answer_waits.note(given)
        listener().failed("growth", sentence)
        said = f": {found()}" if found else ""
        said += said_of_limit(within, given)
        raise CheckFailed(f"not so within {within:g} s: {sentence}{said}")
