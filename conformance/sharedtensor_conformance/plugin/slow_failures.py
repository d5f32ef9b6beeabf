"""Stops waiting for what many cases have shown, so that a run with failures ends soon.

A case that hangs costs the deadline of the adapter, and each case may hang. After a few
unexpected cases that hung, or failed only after a long wait, the run saves time: it
waits less for answers, and runs no further case of a test that waited in vain. After
some more, it runs no further case of their clauses either. Such cases get the verdict
``blocked``, since they judged nothing. Each xdist worker uses only the results of its
own cases. A full run, with ``--all-cases`` or ``--strict``, judges each case.
"""

from __future__ import annotations

from collections.abc import Iterable

from sharedtensor_conformance.plugin.execution import Outcome
from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.signatures import NOT_WAITED
from sharedtensor_conformance.report.verdicts import Verdict

MANY = 3
"""After this number of slow failures, a run saves time."""

VERY_MANY = 10
"""After this number of cases that waited in vain, it runs one case of a clause."""

LONG_WAIT = 3.0
"""A wait is long that takes so many seconds more than the whole case usually does."""

SHORTEST_LIMIT = 0.5
"""The shortest limit of a wait for an answer, in seconds."""


class SlowFailures:
    """The unexpected cases so far that hung, or failed after a long wait.

    Args:
        full: whether each case is judged. Then only hangs are counted, and separately
            for each configuration.
    """

    def __init__(self, *, full: bool) -> None:
        self._full = full
        self._judged: list[tuple[Case, str]] = []
        self._in_vain: list[Case] = []  # these, and those whose waits were limited

    def note(self, case: Case, configuration: str, excess: float) -> None:
        """Note a case, and by how much its longest wait exceeded its usual duration."""
        failed = case.verdict in (Verdict.FAIL, Verdict.CRASH)
        late = failed and excess >= LONG_WAIT and not self._full
        slow = (late or case.verdict is Verdict.HANG) and not case.expected
        if slow:
            self._judged.append((case, configuration))
        if slow or (case.verdict is Verdict.BLOCKED and case.remote_calls):
            self._in_vain.append(case)

    def are_many(self, configuration: str) -> bool:
        """Return whether there are so many that failures are not repeated."""
        places = [place for _, place in self._judged]
        count = places.count(configuration) if self._full else len(places)
        return count >= MANY

    @property
    def save_time(self) -> bool:
        """Whether there are so many that not every case is judged."""
        return not self._full and len(self._judged) >= MANY

    @staticmethod
    def limit(usual: float) -> float:
        """Return the limit of waits for a case that usually takes `usual` seconds."""
        return round(max(SHORTEST_LIMIT, 2 * usual), 1)

    def outcome(self, case: Case, clauses: Iterable[str]) -> Outcome | None:
        """Return the outcome of a case that is not run to save time, else None.

        Args:
            case: the case.
            clauses: the clauses that it would break if it hung.
        """
        any_test = len(self._in_vain) >= VERY_MANY
        for shown in self._in_vain:
            is_covered = any_test and set(clauses) <= set(shown.clauses)
            if is_covered or case.test == shown.test:
                return self.unjudged(f"it was not run, as '{shown.id}' waited in vain")
        return None

    def unjudged(self, why: str) -> Outcome:
        """Return the outcome of a case that is not judged, to save time."""
        first, _ = self._judged[0]
        said = (
            f"{NOT_WAITED}{len(self._judged)} cases hung or failed after a long wait, "
            f"first '{first.id}'; --all-cases judges each case"
        )
        return Outcome(Verdict.BLOCKED, f"{said}\n{why}")
