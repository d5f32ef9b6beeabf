"""Converts the result of one execution of a case, or its exception, to a verdict."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, replace
from pathlib import Path

from sharedtensor_conformance.harness.case.checks import tally
from sharedtensor_conformance.harness.case.outcomes import (
    ActorDied,
    Broken,
    CheckFailed,
    DeadlineExceeded,
    HarnessFault,
    LeftBehind,
    NotRun,
    RemoteRaised,
    Unsupported,
)
from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.verdicts import Need, Verdict

VERDICT_OF: dict[type[Exception], Verdict] = {
    CheckFailed: Verdict.FAIL,
    LeftBehind: Verdict.FAIL,
    RemoteRaised: Verdict.FAIL,
    ActorDied: Verdict.CRASH,
    DeadlineExceeded: Verdict.HANG,
    HarnessFault: Verdict.ERROR,
    NotRun: Verdict.NOT_RUN,
    Unsupported: Verdict.UNSUPPORTED,
}

MALFORMED_VALUE_ERRORS = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""Exceptions of a test's own line if it received, for example, None for a tensor."""


@dataclass(frozen=True)
class Outcome:
    """The result of one execution of a case.

    Args:
        leaking: the cases that left behind what the ledger found.
        left: the kinds of what the ledger found.
        known: whether earlier cases had already left everything that was found.
        clauses: the clauses that the failure is about. The first of them that the case
            cites is broken; if there is none, all clauses of the case are.
        needs: what the machine would have to permit, where that alone is missing.
    """

    verdict: Verdict
    evidence: str = ""
    checks: int = 0
    remote_calls: int = 0
    leaking: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    known: bool = False
    clauses: tuple[str, ...] = ()
    needs: Need | None = None

    @classmethod
    def of_return(cls) -> Outcome:
        """Return a pass, or an error if the test made no check or no remote call.

        Such a test would pass on any implementation.
        """
        for what in ("checks", "remote_calls"):
            if getattr(tally, what) == 0:
                return cls._now(Verdict.ERROR, f"the test made no {what}")
        return cls._now(Verdict.PASS)

    @classmethod
    def of_error(cls, error: Exception) -> Outcome:
        """Return the outcome for an exception that a test raised."""
        verdict = VERDICT_OF.get(type(error), Verdict.ERROR)
        evidence = str(error)
        if isinstance(error, MALFORMED_VALUE_ERRORS) and _raised_in_a_test(error):
            verdict = Verdict.FAIL
            evidence = f"what arrived has another form: {type(error).__name__}: {error}"
        if verdict is Verdict.ERROR and not isinstance(error, HarnessFault):
            evidence = "".join(traceback.format_exception(error)).strip()
        outcome = cls._now(verdict, evidence)
        if isinstance(error, Broken):
            outcome = replace(outcome, clauses=error.clauses)
        if isinstance(error, NotRun):
            outcome = replace(outcome, needs=error.need)
        if isinstance(error, LeftBehind):
            found = replace(outcome, leaking=error.cases, left=error.kinds)
            return replace(found, known=error.known)
        return outcome

    @classmethod
    def _now(cls, verdict: Verdict, evidence: str = "") -> Outcome:
        return cls(verdict, evidence, tally.checks, tally.remote_calls)

    def with_main_clauses(self, *clauses: str) -> Outcome:
        """Return the outcome with these clauses after the ones that it names itself."""
        if self.verdict.broken:
            return replace(self, clauses=(*self.clauses, *clauses))
        return self

    def on(self, case: Case) -> Case:
        """Return the case with this outcome."""
        broken = tuple(id for id in self.clauses if id in case.clauses)
        return replace(
            case,
            clauses=broken[:1] or case.clauses,
            verdict=self.verdict,
            evidence=self.evidence,
            checks=self.checks,
            remote_calls=self.remote_calls,
            leaking=self.leaking,
            left=self.left,
            needs=self.needs,
        )


def _raised_in_a_test(error: Exception) -> bool:
    """Return whether a line of a test raised the error, and not the harness."""
    frames = traceback.extract_tb(error.__traceback__)
    name = Path(frames[-1].filename).name if frames else ""
    return name.startswith("test_") or name == "shared_steps.py"
