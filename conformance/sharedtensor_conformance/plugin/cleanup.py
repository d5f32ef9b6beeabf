"""Cleans up after a case, so that the next one starts in a known state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.harness.ledger.leaks import Growth
from sharedtensor_conformance.harness.stage.stage import Stage
from sharedtensor_conformance.plugin.stages import Stages
from sharedtensor_conformance.report.expectations import Expectation
from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.verdicts import Verdict


def judges_leaks_as_advice(case: Case) -> bool:
    """Return whether a case judges only leaks, and only by SHOULD clauses."""
    clauses = [load_clauses()[id] for id in case.clauses]
    return all(c.level != "MUST" and c.observes == "lifetime" for c in clauses)


class Cleanup:
    """Settles the current stage after a case, or ends its processes.

    Args:
        stages: the processes.
        entry_of: returns the expectation that covers the verdict of a case, if any.
    """

    def __init__(
        self, stages: Stages, entry_of: Callable[[Case], Expectation | None]
    ) -> None:
        self._stages = stages
        self._entry_of = entry_of

    def after_failure(self, case: Case, *, may_corrupt: bool) -> Growth | None:
        """Settle the stage or end its processes; return what the case left behind."""
        unrun = (Verdict.FOLLOWS, Verdict.UNSUPPORTED, Verdict.BLOCKED)
        if case.verdict in unrun and not case.remote_calls:
            return None
        left = self.leaks_of(case, may_corrupt=may_corrupt)
        if left is None or (left and not left.known):
            self._stages.retire()
        return left

    def leaks_of(self, case: Case, *, may_corrupt: bool) -> Growth | None:
        """Return what a failed case left behind, or None if that cannot be judged.

        It cannot be judged after a crash or a hang, or while a message is in flight.

        The leaks of an expected failure are not counted for LIFE-7 and LIFE-12 if its
        expectation names them, because they have the same cause. Leaks of a case that
        judges only leaks by SHOULD clauses are not counted either, because they would
        break these MUST clauses.
        """
        stage = self._started_stage()
        judged = case.verdict in (Verdict.FAIL, Verdict.PASS) and not may_corrupt
        if not judged or stage is None or stage.in_flight:
            return None
        try:
            left = stage.settle()
        except Exception:  # cleaning up failed: the next case gets new processes
            return None
        unexpected = self._unexpected(case, left)
        if unexpected and not judges_leaks_as_advice(case):
            failed = case.verdict is Verdict.FAIL
            stage.leaks.note(case.id, unexpected, failed=failed)
        return left

    def _unexpected(self, case: Case, left: Growth) -> Growth:
        """Return what a case left behind and no expectation covers."""
        entry = self._entry_of(case) if case.expected else None
        if entry is None:
            return left if not case.expected else replace(left, leaks=[])
        unexpected = [
            leak for leak in left.leaks if not all(map(entry.expects_left, leak.names))
        ]
        return replace(left, leaks=unexpected)

    def after_pass(self, case: Case) -> None:
        """Clean up; what remains is counted for LIFE-7.

        Raises:
            Exception: any error of a process while it is cleaned up.
        """
        stage = self._started_stage()
        if stage is None:
            return
        try:
            growth = stage.settle()
        except Exception:
            self._stages.retire()
            raise
        if growth:
            stage.leaks.note(case.id, growth)
        if stage.in_flight or not stage.owner.is_alive() or not stage.peer.is_alive():
            self._stages.retire()

    def _started_stage(self) -> Stage | None:
        stage = self._stages.current
        return stage if stage and stage.supervision.is_started else None
