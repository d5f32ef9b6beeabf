"""What is done after a case, so that the next one finds processes as good as new."""

from __future__ import annotations

from sharedtensor_conformance.harness.leaks import Growth
from sharedtensor_conformance.harness.stage import Stage
from sharedtensor_conformance.plugin.stages import Stages
from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.verdicts import Verdict


class Cleanup:
    """Settles the current stage after a case, or ends its processes."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages

    def after_failure(self, case: Case, *, may_corrupt: bool) -> Growth | None:
        """End the processes unless they are as good as new; return what it left."""
        unrun = (Verdict.FOLLOWS, Verdict.UNSUPPORTED, Verdict.BLOCKED)
        if case.verdict in unrun and not case.remote_calls:
            return None
        left = self.left_by(case, may_corrupt=may_corrupt)
        if left is None or (left and not left.known):
            self._stages.retire()
        return left

    def left_by(self, case: Case, *, may_corrupt: bool) -> Growth | None:
        """Return what a failed case left, None where nobody can tell.

        After a crash, a hang, and with a message under way, what is there says nothing
        of the implementation. What an expected failure leaves is evidence of its cause
        and not held against LIFE-7 and LIFE-12 as well.
        """
        stage = self._started()
        judged = case.verdict in (Verdict.FAIL, Verdict.PASS) and not may_corrupt
        if not judged or stage is None or stage.in_flight:
            return None
        try:
            left = stage.settle()
        except Exception:  # it cannot be cleaned up: the next case gets new processes
            return None
        if left and not case.expected:
            stage.leaks.note(case.id, left, failed=case.verdict is Verdict.FAIL)
        return left

    def after_pass(self, case: Case) -> None:
        """Clean up; what stays is held against LIFE-7.

        Raises:
            Exception: whatever a process does that cannot be cleaned up.
        """
        stage = self._started()
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

    def _started(self) -> Stage | None:
        stage = self._stages.current
        return stage if stage and stage.supervision.is_started else None
