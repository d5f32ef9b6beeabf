"""Runs a case, determines its verdict and cleans up after it.

Processes are reused between cases. They are ended after a crash, a hang, an error, a
message that was never received, and a failure after which memory may be corrupt or the
ledger has changed. The first unexpected failure of a test in a configuration is
repeated once in fresh processes. A failure that vanishes there is state-dependent,
which is never a pass.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.harness.case import in_flight
from sharedtensor_conformance.harness.case.answer_waits import answer_waits
from sharedtensor_conformance.harness.case.checks import tally
from sharedtensor_conformance.harness.case.marking import Marking
from sharedtensor_conformance.harness.case.outcomes import DeadlineExceeded, NotRun
from sharedtensor_conformance.harness.ledger.leaks import Growth
from sharedtensor_conformance.harness.stage.stage import Stage
from sharedtensor_conformance.plugin.cleanup import Cleanup
from sharedtensor_conformance.plugin.enumeration import PlannedCase
from sharedtensor_conformance.plugin.execution import Outcome
from sharedtensor_conformance.plugin.known_deviations import KnownDeviations
from sharedtensor_conformance.plugin.slow_failures import LONG_WAIT, SlowFailures
from sharedtensor_conformance.plugin.stages import Stages
from sharedtensor_conformance.plugin.watchdog import Watchdog
from sharedtensor_conformance.report.expectations import (
    Expectation,
    Expectations,
    load_expectations,
)
from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.signatures import ALSO_LEFT, STATE_DEPENDENT
from sharedtensor_conformance.report.verdicts import Verdict

if TYPE_CHECKING:
    from sharedtensor_conformance.plugin.cases import CaseItem

MAX_FAILED_STARTS = 2
"""A configuration is blocked after this number of failed starts in a row."""


@dataclass
class ConfigurationState:
    """The state of a configuration after the cases that have run so far.

    Args:
        why_not: the outcome of all further cases, if they cannot run.
        failed_starts: how many starts of its processes failed in a row.
        confirmed: the tests that failed in fresh processes too.
    """

    why_not: Outcome | None = None
    failed_starts: int = 0
    confirmed: set[str] = field(default_factory=set)


class Runner:
    """Runs cases one after the other.

    Args:
        stages: the processes.
        blocked: why no case can be judged; empty if cases can be judged.
        expectations: the file of known deviations.
        strict: whether SHOULD clauses also decide the exit status; then no case is left
            out to save time.
        all_cases: whether all cases are run, also those of known deviations.
        repeats: whether unexpected failures are repeated.
        limit: the time limit of a case, in seconds.
        usual_seconds: returns the expected duration of a case.
        stderr: the descriptor that the watchdog writes to.
    """

    def __init__(
        self,
        stages: Stages,
        *,
        blocked: str,
        expectations: str | None,
        strict: bool,
        all_cases: bool,
        repeats: bool,
        limit: float,
        usual_seconds: Callable[[PlannedCase], float],
        stderr: int,
    ) -> None:
        self.stages = stages
        self.implementation = stages.implementation
        self.blocked = blocked
        self.strict = strict
        self.all_cases = all_cases
        self.repeats = repeats
        self.expected: Expectations = load_expectations(expectations)
        self.usual_seconds = usual_seconds
        self._is_full = all_cases or strict
        self.slow = SlowFailures(full=self._is_full)
        self.known = KnownDeviations(self.expected, self.implementation.version)
        self.watchdog = Watchdog(limit, self.stages.abandon, stderr)
        self._cleanup = Cleanup(stages, self._entry_of)
        self._states: defaultdict[str, ConfigurationState] = defaultdict(
            ConfigurationState
        )

    def close(self) -> None:
        """End all processes."""
        self.stages.close()

    def _stage_of(self, item: CaseItem) -> Stage:
        return self.stages.of(item.planned.configuration, item.batch)

    def _state_of(self, item: CaseItem) -> ConfigurationState:
        return self._states[item.planned.configuration.id]

    # Verdicts

    def run(self, item: CaseItem) -> Case:
        """Run a case and return its line in the report."""
        marking = item.planned.marking
        try:
            with (
                in_flight.taking(marking.in_flight),
                in_flight.taking_turns(marking.large),
            ):
                return self._run_in_time(item)
        except NotRun as error:
            return Outcome.of_error(error).on(item.planned.as_case())

    def _run_in_time(self, item: CaseItem) -> Case:
        started = time.perf_counter()
        with self.watchdog.watching():
            case = self._judge(item)
        return replace(case, seconds=round(time.perf_counter() - started, 6))

    def decides(self, case: Case) -> bool:
        """Return whether pytest has to show the case as failed."""
        if case.verdict is Verdict.ERROR:
            return True
        levels = {load_clauses()[id].level for id in case.clauses}
        binding = "MUST" in levels or (self.strict and "SHOULD" in levels)
        return case.verdict.broken and not case.expected and binding

    def _judge(self, item: CaseItem) -> Case:
        outcome = self._outcome_without_run(item) or self._execute_briefly(item)
        outcome = outcome.with_main_clauses(*item.planned.marking.mainly)
        case = self._expect(outcome.on(item.planned.as_case()))
        if not outcome.known and self._is_repeated(case, item):
            case = self._repeat(case, item)
        elif case.verdict is not Verdict.PASS:
            case = _with_leak(case, self._clean_up_failure(case, item))
        if case.verdict is Verdict.PASS:
            case = self._clean_up_pass(case)
        self.known.confirm(case, item.planned.configuration.id)
        waited = answer_waits.longest - self.usual_seconds(item.planned)
        self.slow.note(case, item.planned.configuration.id, waited)
        return case

    def _outcome_without_run(self, item: CaseItem) -> Outcome | None:
        """Return the outcome of a case that does not have to be run, else None."""
        configuration = item.planned.configuration
        if configuration.why_not:
            kind = Verdict.UNSUPPORTED if configuration.unsupported else Verdict.NOT_RUN
            return Outcome(kind, configuration.why_not)
        if self.blocked:
            return Outcome(Verdict.BLOCKED, self.blocked)
        return (
            self._state_of(item).why_not
            or self._follows(item)
            or self._not_waited_for(item)
        )

    def _follows(self, item: CaseItem) -> Outcome | None:
        """Return the outcome of a case whose known cause is confirmed, else None."""
        if self.all_cases or item.planned.marking.runs_last:
            return None
        return self.known.outcome(item.planned.as_case(), item.planned.configuration.id)

    def _not_waited_for(self, item: CaseItem) -> Outcome | None:
        """Return the outcome of a case that is not run to save time, else None."""
        if not self._saves_time(item):
            return None
        clauses = item.planned.marking.mainly[:1] or item.planned.marking.clauses
        return self.slow.outcome(item.planned.as_case(), clauses)

    def _saves_time(self, item: CaseItem) -> bool:
        """Return whether a case is not waited for, after many slow failures.

        A case that a known deviation concerns is: it shows as expected, or not at all.
        """
        if not self.slow.save_time or item.planned.marking.runs_last:
            return False
        where = item.planned.configuration.id
        return not self.known.entry_keys(item.planned.as_case(), where)

    def _expect(self, case: Case) -> Case:
        if not case.verdict.broken:
            return case
        found = self._entry_of(case)
        return replace(case, expected=bool(found), cause=found.cause if found else "")

    def _entry_of(self, case: Case) -> Expectation | None:
        return self.expected.covers(case, self.implementation.version)

    # Execution

    def _execute_briefly(self, item: CaseItem) -> Outcome:
        """Execute a case, with a limit for answers after many slow failures."""
        limit = None
        if self._saves_time(item):
            limit = self.slow.limit(self.usual_seconds(item.planned))
        return self._unless_ended(self._execute(item, limit))

    def _unless_ended(self, outcome: Outcome) -> Outcome:
        """Return the outcome, but ``blocked`` if a wait ended before its deadline."""
        if not answer_waits.ended:
            return outcome
        unjudged = self.slow.unjudged(f"its wait ended: {answer_waits.ended}")
        calls = outcome.remote_calls
        return replace(unjudged, checks=outcome.checks, remote_calls=calls)

    def _execute(self, item: CaseItem, limit: float | None = None) -> Outcome:
        tally.reset()
        answer_waits.reset(None)
        stage, state = self._stage_of(item), self._state_of(item)
        if self._is_going_to_hang(item):
            stage.timeouts.shorten()
        else:
            stage.timeouts.restore()
        try:
            if not item.planned.marking.isolated:
                _make_ready(stage, item.planned.marking)
        except Exception as error:
            return self._failed_start(state, self._outcome_of(error))
        state.failed_starts = 0
        answer_waits.limit = limit
        try:
            item.call_test()
        except Exception as error:
            return self._outcome_of(error)
        return Outcome.of_return()

    def _is_going_to_hang(self, item: CaseItem) -> bool:
        """Return whether the case will probably hang and gets short deadlines."""
        configuration = item.planned.configuration.id
        known = self.known.has_hung(item.planned.as_case(), configuration)
        return known or (self._is_full and self.slow.are_many(configuration))

    def _failed_start(self, state: ConfigurationState, outcome: Outcome) -> Outcome:
        state.failed_starts += 1
        self.stages.retire()  # processes that did start are not used
        if outcome.verdict is Verdict.NOT_RUN:
            state.why_not = outcome
        elif state.failed_starts >= MAX_FAILED_STARTS:
            evidence = f"its processes cannot be started: {outcome.evidence}"
            state.why_not = Outcome(Verdict.BLOCKED, evidence)
        return outcome

    def _outcome_of(self, error: Exception) -> Outcome:
        if self.watchdog.expired:
            error = DeadlineExceeded(self.watchdog.evidence)
        return Outcome.of_error(error)

    # Repetition

    def _is_repeated(self, case: Case, item: CaseItem) -> bool:
        failed = case.verdict in (Verdict.FAIL, Verdict.CRASH, Verdict.HANG)
        failed = failed and self.repeats and not self.watchdog.expired
        new = case.test not in self._state_of(item).confirmed
        often = self.slow.are_many(item.planned.configuration.id)
        return failed and not case.expected and not often and new

    def _repeat(self, case: Case, item: CaseItem) -> Case:
        left = self._cleanup.leaks_of(
            case, may_corrupt=item.planned.marking.may_corrupt
        )
        self.stages.retire()
        with self._stage_of(item).waiting_in_full():
            again = self._execute(item, self._limit_of_repetition(case, item))
        later = self._clean_up_failure(again.on(case), item)
        case = _with_leak(case, left or later)
        if again.verdict is Verdict.PASS:
            evidence = STATE_DEPENDENT + case.evidence
            return replace(case, repeated="vanished", evidence=evidence)
        self._state_of(item).confirmed.add(case.test)
        return replace(case, repeated="same")

    def _limit_of_repetition(self, case: Case, item: CaseItem) -> float | None:
        """Return the limit of waits: what hung in full is soon seen to hang again."""
        if self._is_full or case.verdict is not Verdict.HANG:
            return None
        return max(LONG_WAIT, 2 * self.usual_seconds(item.planned))

    # Cleaning up

    def _clean_up_failure(self, case: Case, item: CaseItem) -> Growth | None:
        return self._cleanup.after_failure(
            case, may_corrupt=item.planned.marking.may_corrupt
        )

    def _clean_up_pass(self, case: Case) -> Case:
        try:
            self._cleanup.after_pass(case)
        except Exception as error:
            after = self._outcome_of(error)
            evidence = f"while it was cleaned up: {after.evidence}"
            after = self._unless_ended(replace(after, evidence=evidence))
            return self._expect(after.on(case))
        return case


def _make_ready(stage: Stage, marking: Marking) -> None:
    """Start the owner and its peer, and note what they hold."""
    if marking.sets_strategies:
        stage.starter.use_all_strategies()
    stage.peer.ensure_started()
    if not stage.baseline.is_taken:  # else the growth of its first case is unknown
        stage.baseline.take()


def _with_leak(case: Case, left: Growth | None) -> Case:
    also = [str(leak) for leak in left.leaks] if left else []
    also = [said for said in also if said not in case.evidence]
    if not also:
        return case
    return replace(case, evidence=f"{case.evidence}{ALSO_LEFT}{'; '.join(also)}")
