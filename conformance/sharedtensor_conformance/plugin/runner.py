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

from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.harness import in_flight
from sharedtensor_conformance.harness.checks import tally
from sharedtensor_conformance.harness.leaks import Growth
from sharedtensor_conformance.harness.marking import Marking
from sharedtensor_conformance.harness.matrix import Configuration
from sharedtensor_conformance.harness.outcomes import DeadlineExceeded, NotRun
from sharedtensor_conformance.harness.stage import Stage
from sharedtensor_conformance.harness.watchdog import Watchdog
from sharedtensor_conformance.plugin.cleanup import Cleanup
from sharedtensor_conformance.plugin.enumeration import PlannedCase
from sharedtensor_conformance.plugin.execution import Outcome
from sharedtensor_conformance.plugin.known_deviations import KnownDeviations
from sharedtensor_conformance.plugin.stages import Stages
from sharedtensor_conformance.report.expectations import (
    Expectation,
    Expectations,
    load_expectations,
)
from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.signatures import ALSO_LEFT, STATE_DEPENDENT
from sharedtensor_conformance.report.verdicts import Verdict

MAX_FAILED_STARTS = 2
"""A configuration is blocked after this number of failed starts in a row."""

MANY_HANGS = 3
"""After this number of unexpected hangs: short deadlines and no repetitions."""


@dataclass(frozen=True)
class PreparedCase:
    """A case that is to be run.

    Args:
        planned: the case as it was planned.
        test: calls the test function.
        batch: the number of its batch in its configuration.
    """

    planned: PlannedCase
    test: Callable[[], None]
    batch: int = 0

    @property
    def marking(self) -> Marking:
        """The test's clauses and other properties, from its decorator."""
        return self.planned.marking

    @property
    def configuration(self) -> Configuration:
        """The configuration in which it runs."""
        return self.planned.configuration

    def as_case(self) -> Case:
        """Return the case's line in the report, before it has a verdict."""
        return self.planned.as_case()


@dataclass
class ConfigurationState:
    """The state of a configuration after the cases that have run so far.

    Args:
        why_not: the outcome of all further cases, if they cannot run.
        failed_starts: how many starts of its processes failed in a row.
        hangs: how many cases hung unexpectedly.
        confirmed: the tests that failed in fresh processes too.
    """

    why_not: Outcome | None = None
    failed_starts: int = 0
    hangs: int = 0
    confirmed: set[str] = field(default_factory=set)

    @property
    def hangs_often(self) -> bool:
        """Whether so many cases hung that the next ones get short deadlines."""
        return self.hangs >= MANY_HANGS


class Runner:
    """Runs cases one after the other.

    Args:
        stages: the processes.
        blocked: why no case can be judged; empty if cases can be judged.
        expectations: the file of known deviations.
        strict: whether SHOULD clauses also decide the exit status.
        all_cases: whether all cases of known deviations are run.
        repeats: whether unexpected failures are repeated.
        limit: the time limit of a case, in seconds.
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
        stderr: int,
    ) -> None:
        self.stages = stages
        self.implementation = stages.implementation
        self.blocked = blocked
        self.strict = strict
        self.all_cases = all_cases
        self.repeats = repeats
        self.expected: Expectations = load_expectations(expectations)
        self.known = KnownDeviations(self.expected, self.implementation.version)
        self.watchdog = Watchdog(limit, self.stages.abandon, stderr)
        self._cleanup = Cleanup(stages, self._entry_of)
        self._states: defaultdict[str, ConfigurationState] = defaultdict(
            ConfigurationState
        )

    def close(self) -> None:
        """End all processes."""
        self.stages.close()

    def _stage_of(self, prepared: PreparedCase) -> Stage:
        return self.stages.of(prepared.configuration, prepared.batch)

    def _state_of(self, prepared: PreparedCase) -> ConfigurationState:
        return self._states[prepared.configuration.id]

    # Verdicts

    def run(self, prepared: PreparedCase) -> Case:
        """Run a case and return its line in the report."""
        try:
            with in_flight.taking(prepared.marking.in_flight):
                return self._run_in_time(prepared)
        except NotRun as error:
            return Outcome.of_error(error).on(prepared.as_case())

    def _run_in_time(self, prepared: PreparedCase) -> Case:
        started = time.perf_counter()
        with self.watchdog.watching():
            case = self._judge(prepared)
        return replace(case, seconds=round(time.perf_counter() - started, 6))

    def decides(self, case: Case) -> bool:
        """Return whether pytest has to show the case as failed."""
        if case.verdict is Verdict.ERROR:
            return True
        levels = {load_clauses()[id].level for id in case.clauses}
        binding = "MUST" in levels or (self.strict and "SHOULD" in levels)
        return case.verdict.broken and not case.expected and binding

    def _judge(self, prepared: PreparedCase) -> Case:
        outcome = self._outcome_without_run(prepared) or self._execute(prepared)
        outcome = outcome.with_main_clauses(*prepared.marking.mainly)
        case = self._expect(outcome.on(prepared.as_case()))
        if not outcome.known and self._is_repeated(case, prepared):
            case = self._repeat(case, prepared)
        elif case.verdict is not Verdict.PASS:
            case = _with_leak(case, self._clean_up_failure(case, prepared))
        if case.verdict is Verdict.PASS:
            case = self._clean_up_pass(case)
        self.known.confirm(case, prepared.configuration.id)
        return case

    def _outcome_without_run(self, prepared: PreparedCase) -> Outcome | None:
        """Return the outcome of a case that does not have to be run, else None."""
        configuration = prepared.configuration
        if configuration.why_not:
            kind = Verdict.UNSUPPORTED if configuration.unsupported else Verdict.NOT_RUN
            return Outcome(kind, configuration.why_not)
        if self.blocked:
            return Outcome(Verdict.BLOCKED, self.blocked)
        return self._state_of(prepared).why_not or self._follows(prepared)

    def _follows(self, prepared: PreparedCase) -> Outcome | None:
        """Return the outcome of a case whose known cause is confirmed, else None."""
        if self.all_cases or prepared.marking.runs_last:
            return None
        return self.known.outcome(prepared.as_case(), prepared.configuration.id)

    def _expect(self, case: Case) -> Case:
        if not case.verdict.broken:
            return case
        found = self._entry_of(case)
        return replace(case, expected=bool(found), cause=found.cause if found else "")

    def _entry_of(self, case: Case) -> Expectation | None:
        return self.expected.covers(case, self.implementation.version)

    # Execution

    def _execute(self, prepared: PreparedCase) -> Outcome:
        tally.reset()
        stage, state = self._stage_of(prepared), self._state_of(prepared)
        if self._is_going_to_hang(prepared):
            stage.timeouts.shorten()
        else:
            stage.timeouts.restore()
        try:
            if not prepared.marking.isolated:
                _make_ready(stage, prepared.marking)
        except Exception as error:
            return self._failed_start(state, self._outcome_of(error))
        state.failed_starts = 0
        try:
            prepared.test()
        except Exception as error:
            return self._outcome_of(error)
        return Outcome.of_return()

    def _is_going_to_hang(self, prepared: PreparedCase) -> bool:
        """Return whether the case will probably hang and gets short deadlines."""
        configuration = prepared.configuration.id
        known = self.known.has_hung(prepared.as_case(), configuration)
        return known or self._state_of(prepared).hangs_often

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

    def _is_repeated(self, case: Case, prepared: PreparedCase) -> bool:
        failed = case.verdict in (Verdict.FAIL, Verdict.CRASH, Verdict.HANG)
        failed = failed and self.repeats and not self.watchdog.expired
        state = self._state_of(prepared)
        new = case.test not in state.confirmed
        return failed and not case.expected and not state.hangs_often and new

    def _repeat(self, case: Case, prepared: PreparedCase) -> Case:
        left = self._cleanup.leaks_of(case, may_corrupt=prepared.marking.may_corrupt)
        self.stages.retire()
        with self._stage_of(prepared).waiting_in_full():
            again = self._execute(prepared)
        later = self._clean_up_failure(again.on(case), prepared)
        case = _with_leak(case, left or later)
        if again.verdict is Verdict.PASS:
            evidence = STATE_DEPENDENT + case.evidence
            return replace(case, repeated="vanished", evidence=evidence)
        self._state_of(prepared).confirmed.add(case.test)
        return replace(case, repeated="same")

    # Cleaning up

    def _clean_up_failure(self, case: Case, prepared: PreparedCase) -> Growth | None:
        # An expected hang says nothing about cases with other causes.
        new = case.verdict is Verdict.HANG and not case.expected
        self._state_of(prepared).hangs += new
        return self._cleanup.after_failure(
            case, may_corrupt=prepared.marking.may_corrupt
        )

    def _clean_up_pass(self, case: Case) -> Case:
        try:
            self._cleanup.after_pass(case)
        except Exception as error:
            after = self._outcome_of(error)
            evidence = f"while it was cleaned up: {after.evidence}"
            return self._expect(replace(after, evidence=evidence).on(case))
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
