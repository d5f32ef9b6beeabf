"""Runs a case: from a test's story to a verdict, with everything cleaned up after it.

Peers are reused between cases. They retire after a crash, a hang, an error, a message
that was never received, and a failure after which memory may be corrupt or the ledger
is not as before. The
first failure of a test in a configuration that nobody expected is repeated once in
fresh processes; one that vanishes there is state-dependent, which is never a pass.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.harness.checks import tally
from sharedtensor_conformance.harness.marking import Marking
from sharedtensor_conformance.harness.matrix import Configuration
from sharedtensor_conformance.harness.outcomes import (
    ActorDied,
    CheckFailed,
    DeadlineExceeded,
    HarnessFault,
    NotRun,
    RemoteRaised,
)
from sharedtensor_conformance.harness.stage import Growth, Stage
from sharedtensor_conformance.harness.watchdog import Watchdog
from sharedtensor_conformance.report.expectations import Expectations, load_expectations
from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.verdicts import Verdict

VERDICT_OF: dict[type[Exception], Verdict] = {
    CheckFailed: Verdict.FAIL,
    RemoteRaised: Verdict.FAIL,
    ActorDied: Verdict.CRASH,
    DeadlineExceeded: Verdict.HANG,
    HarnessFault: Verdict.ERROR,
    NotRun: Verdict.NOT_RUN,
}

MISSHAPEN = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What a test's line raises when it gets None, say, where a tensor was due."""

FAILED_STARTS = 2
"""After so many failed starts in a row, a configuration is blocked."""

PATIENT_HANGS = 3
"""After so many hangs, a configuration gets a short deadline and no repetitions."""

SHORT_DEADLINE = 3.0


@dataclass(frozen=True)
class Outcome:
    """What one execution of a story came to."""

    verdict: Verdict
    evidence: str = ""
    checks: int = 0
    remote_calls: int = 0


class Stages:
    """Has the stage of one configuration at a time."""

    def __init__(self, name: str, implementation: Implementation) -> None:
        self.name = name
        self.implementation = implementation
        self.current: Stage | None = None
        self.leaks: dict[str, dict[str, list[str]]] = {}

    def of(self, configuration: Configuration) -> Stage:
        """Return the stage of a configuration; that of another one is closed."""
        if self.current is None or self.current.configuration != configuration:
            self.retire()
            self.current = Stage(self.name, self.implementation, configuration)
            kept = self.leaks.setdefault(configuration.id, self.current.leaks)
            self.current.leaks = kept
        return self.current

    def retire(self) -> None:
        """End all processes; the next case gets new ones."""
        if self.current:
            self.current.close()
            self.current = None

    def abandon(self) -> None:
        """Kill all processes, from any thread."""
        if stage := self.current:
            stage.abandon()


class Runner:
    """Runs cases one after the other."""

    def __init__(
        self,
        stages: Stages,
        *,
        blocked: str,
        expectations: str | None,
        strict: bool,
        repeats: bool,
        limit: float,
        stderr: int,
    ) -> None:
        self.stages = stages
        self.implementation = stages.implementation
        self.blocked = blocked
        self.strict = strict
        self.repeats = repeats
        self.expected: Expectations = load_expectations(expectations)
        self.why_not: dict[str, Outcome] = {}
        self.failed_starts: Counter[str] = Counter()
        self.hangs: Counter[str] = Counter()
        self.confirmed: set[tuple[str, str]] = set()
        self.watchdog = Watchdog(limit, self.stages.abandon, stderr)

    def close(self) -> None:
        """End all processes."""
        self.stages.retire()

    # Verdicts

    def run(
        self,
        id: str,
        marking: Marking,
        configuration: Configuration,
        axes: dict[str, Any],
        story: Callable[[], None],
    ) -> Case:
        """Run a case and return its line of the report."""
        started = time.perf_counter()
        case = Case(
            id=id,
            test=id.partition("[")[0],
            clauses=marking.clauses,
            verdict=Verdict.ERROR,
            device=configuration.device,
            axes=_axes_of(configuration, axes),
        )
        with self.watchdog.watching():
            case = self._judge(case, configuration, story, marking)
        return replace(case, seconds=round(time.perf_counter() - started, 6))

    def _judge(
        self,
        case: Case,
        configuration: Configuration,
        story: Callable[[], None],
        marking: Marking,
    ) -> Case:
        outcome = self._foregone(configuration)
        outcome = outcome or self._execute(
            configuration, story, isolated=marking.isolated
        )
        case = self._expect(_with(case, outcome))
        if self._repeats(case, configuration):
            case = self._repeat(case, configuration, story, marking)
        elif case.verdict is not Verdict.PASS:
            left = self._retire_after(
                case, configuration, may_corrupt=marking.may_corrupt
            )
            case = _with_leak(case, left)
        if case.verdict is Verdict.PASS:
            case = self._settle(case)
        return case

    def _foregone(self, configuration: Configuration) -> Outcome | None:
        """Return the outcome of a case that needs no execution."""
        if configuration.why_not:
            kind = Verdict.UNSUPPORTED if configuration.unsupported else Verdict.NOT_RUN
            return Outcome(kind, configuration.why_not)
        if self.blocked:
            return Outcome(Verdict.BLOCKED, self.blocked)
        return self.why_not.get(configuration.id)

    def _execute(
        self,
        configuration: Configuration,
        story: Callable[[], None],
        *,
        isolated: bool,
    ) -> Outcome:
        tally.reset()
        stage = self.stages.of(configuration)
        if self.hangs[configuration.id] >= PATIENT_HANGS:
            stage.deadline = SHORT_DEADLINE
        try:
            if not isolated:
                stage.ensure(stage.peer)
                if not stage.baseline:  # else nobody knows what its first case adds
                    stage.rebase()
        except Exception as error:
            return self._failed_start(configuration, self._outcome_of(error))
        self.failed_starts[configuration.id] = 0
        try:
            story()
        except Exception as error:
            return self._outcome_of(error)
        return _unless_vacuous(
            Outcome(Verdict.PASS, "", tally.checks, tally.remote_calls)
        )

    def _outcome_of(self, error: Exception) -> Outcome:
        if self.watchdog.bitten:
            error = DeadlineExceeded(self.watchdog.evidence)
        return outcome_of(error)

    def _failed_start(self, configuration: Configuration, outcome: Outcome) -> Outcome:
        self.failed_starts[configuration.id] += 1
        self.stages.retire()  # what did start is not used
        if outcome.verdict is Verdict.NOT_RUN:
            self.why_not[configuration.id] = outcome
        elif self.failed_starts[configuration.id] >= FAILED_STARTS:
            self.why_not[configuration.id] = Outcome(
                Verdict.BLOCKED, f"its processes cannot be started: {outcome.evidence}"
            )
        return outcome

    def _expect(self, case: Case) -> Case:
        if not case.verdict.broken:
            return case
        found = self.expected.covers(case, self.implementation.version)
        return replace(case, expected=bool(found), cause=found.cause if found else "")

    def decides(self, case: Case) -> bool:
        """Tell whether pytest has to show the case as failed."""
        if case.verdict is Verdict.ERROR:
            return True
        levels = {load_clauses()[id].level for id in case.clauses}
        binding = "MUST" in levels or (self.strict and "SHOULD" in levels)
        return case.verdict.broken and not case.expected and binding

    # Repetition and retirement

    def _repeats(self, case: Case, configuration: Configuration) -> bool:
        failed = case.verdict in (Verdict.FAIL, Verdict.CRASH, Verdict.HANG)
        failed = failed and self.repeats and not self.watchdog.bitten
        patient = self.hangs[configuration.id] < PATIENT_HANGS
        new = (case.test, configuration.id) not in self.confirmed
        return failed and not case.expected and patient and new

    def _repeat(
        self,
        case: Case,
        configuration: Configuration,
        story: Callable[[], None],
        marking: Marking,
    ) -> Case:
        left = self._left_by(case, may_corrupt=marking.may_corrupt)
        self.stages.retire()
        again = self._execute(configuration, story, isolated=marking.isolated)
        after = _with(case, again)
        later = self._retire_after(
            after, configuration, may_corrupt=marking.may_corrupt
        )
        case = _with_leak(case, left or later)
        if again.verdict is Verdict.PASS:
            evidence = f"state-dependent (it held in fresh processes): {case.evidence}"
            return replace(case, repeated="vanished", evidence=evidence)
        self.confirmed.add((case.test, configuration.id))
        return replace(case, repeated="same")

    def _retire_after(
        self, case: Case, configuration: Configuration, *, may_corrupt: bool
    ) -> Growth | None:
        """End the processes unless they are as good as new; return what it left."""
        self.hangs[configuration.id] += case.verdict is Verdict.HANG
        stage = self.stages.current
        if stage is None or case.verdict in (Verdict.UNSUPPORTED, Verdict.BLOCKED):
            return None
        left = self._left_by(case, may_corrupt=may_corrupt)
        if left is None or left:
            self.stages.retire()
        return left

    def _left_by(self, case: Case, *, may_corrupt: bool) -> Growth | None:
        """Return what a failed case left, None where nobody can tell.

        After a crash, a hang, and with a message under way, what is there says nothing
        of the implementation. What an expected failure leaves is evidence of its cause
        and not held against LIFE-7 and LIFE-12 as well.
        """
        stage = self.stages.current
        judged = case.verdict in (Verdict.FAIL, Verdict.PASS) and not may_corrupt
        if not judged or stage is None or stage.supervisor is None or stage.in_flight:
            return None
        try:
            left = stage.settle()
        except Exception:  # it cannot be cleaned up: the next case gets new processes
            return None
        if left and not case.expected:
            failed = ", which failed" if case.verdict is Verdict.FAIL else ""
            stage.note(case.id + failed, left)
        return left

    def _settle(self, case: Case) -> Case:
        """Clean up after a case that passed; what stays is held against LIFE-7."""
        stage = self.stages.current
        if stage is None or stage.supervisor is None:
            return case
        try:
            growth = stage.settle()
        except Exception as error:
            self.stages.retire()
            after = self._outcome_of(error)
            evidence = f"while it was cleaned up: {after.evidence}"
            return self._expect(_with(case, replace(after, evidence=evidence)))
        if growth:
            stage.note(case.id, growth)
        if stage.in_flight or not stage.owner.is_alive() or not stage.peer.is_alive():
            self.stages.retire()
        return case


def outcome_of(error: Exception) -> Outcome:
    """Return the outcome that an exception stands for."""
    verdict = VERDICT_OF.get(type(error), Verdict.ERROR)
    evidence = str(error)
    if isinstance(error, MISSHAPEN) and _raised_in_a_test(error):
        verdict = Verdict.FAIL
        evidence = f"what arrived has another form: {type(error).__name__}: {error}"
    if verdict is Verdict.ERROR and not isinstance(error, HarnessFault):
        evidence = "".join(traceback.format_exception(error)).strip()
    return Outcome(verdict, evidence, tally.checks, tally.remote_calls)


def _with_leak(case: Case, left: Growth | None) -> Case:
    if not left:
        return case
    return replace(case, evidence=f"{case.evidence}; besides, it left this: {left}")


def _raised_in_a_test(error: Exception) -> bool:
    """Tell whether a test's own line raised: one that holds for the reference."""
    frames = traceback.extract_tb(error.__traceback__)
    name = Path(frames[-1].filename).name if frames else ""
    return name.startswith("test_") or name == "stories.py"


def _unless_vacuous(outcome: Outcome) -> Outcome:
    """A test that checked nothing, or never left its process, is a fault of ours."""
    for what in ("checks", "remote_calls"):
        if getattr(outcome, what) == 0:
            return replace(
                outcome, verdict=Verdict.ERROR, evidence=f"the test made no {what}"
            )
    return outcome


def _with(case: Case, outcome: Outcome) -> Case:
    return replace(
        case,
        verdict=outcome.verdict,
        evidence=outcome.evidence,
        checks=outcome.checks,
        remote_calls=outcome.remote_calls,
    )


def _axes_of(configuration: Configuration, axes: dict[str, Any]) -> dict[str, str]:
    found = {
        name: value if isinstance(value, str) else value.name
        for name, value in axes.items()
        if name != "configuration"
    }
    if not configuration.why_not:
        found["strategy"] = configuration.strategy
        found["start_method"] = configuration.start_method
    return found
