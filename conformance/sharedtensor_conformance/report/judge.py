"""Judges a run: computes the results of clauses and the exit status from the cases.

A clause decides the exit status if it is a MUST (with ``--strict``, also a SHOULD) of
``core`` or of a claimed profile, and its device was requested. A clause that decides
has to hold: its cases passed, or all its failures were expected. After a complete run
of the full selection, it also has to be judged by at least one case. Without
``--strict``, it need not be if the machine does not permit its cases to run. A verdict
``error``, a stale expectation or a planned case without a verdict makes any run fail.
So does a run in which no case judged anything, unless it is one shard of a run.

On a release that is newer than each one whose deviations were recorded, a stale
expectation makes only a strict run fail, and so does a known deviation.

The functions here use no file, clock or process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from sharedtensor_conformance.adapter import LONG_PROFILES
from sharedtensor_conformance.clauses import Clause
from sharedtensor_conformance.report.needs import needs_of
from sharedtensor_conformance.report.records import (
    Case,
    ClauseResult,
    Run,
    Summary,
    by_clause,
)
from sharedtensor_conformance.report.verdicts import Verdict, of_clause


class JudgingError(Exception):
    """The cases and the clauses do not belong together; the message is one sentence."""


class Standing(StrEnum):
    """The result of a clause in a run; all views of a report count clauses by it.

    `standing` does not tell what a known deviation breaks: `RunView.standing` does.
    """

    HELD = "held"
    NEW = "new"  # broken, not known, and it decides the exit status
    BLOCKED = "blocked"  # not judged: no tensor could be sent, or no process started
    ADVISORY = "advisory"  # broken, not known, and it does not decide the exit status
    BREAKS_DOCS = "breaks docs"  # known, and the library's documentation promises it
    DIFFERS = "differs"  # known, and only this specification asks for it
    KNOWN = "known"  # known, and nothing says which of the two it is
    NOT_CLAIMED = "not claimed"
    NOT_RUN = "not run"
    NOT_HERE = "not here"  # not run, and only since the machine does not permit it


JUDGED_WITHOUT_CUDA = frozenset({"torch", "torch-patched", "paddle"})
"""Libraries that share CUDA tensors, and whose adapters judge host memory alone.

They do not claim ``cuda``, but a reader would take that for a claim of the library.
"""


@dataclass(frozen=True)
class Shortfalls:
    """The reasons why the exit status of a run is not 0; all empty if it is 0.

    Args:
        broken: clauses that decide and are broken unexpectedly.
        blocked: clauses that could not be judged, since no tensor could be sent or no
            process started.
        unjudged: clauses that decide and that no case judged, in a complete run of the
            full selection.
        not_here: such clauses that the machine does not permit to judge, if strict.
        errors: the number of cases with a fault of the suite or the adapter.
        stale: the number of stale expectations.
        carried_over: the number of clauses that an earlier release is known to break,
            if strict.
        cut_short: whether planned cases, or the end of the report, are missing.
        nothing: whether no case judged anything, though all have a verdict.
    """

    broken: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()
    not_here: tuple[str, ...] = ()
    errors: int = 0
    stale: int = 0
    carried_over: int = 0
    cut_short: bool = False
    nothing: bool = False

    def __bool__(self) -> bool:
        return any(vars(self).values())


def judge(
    run: Run,
    cases: Sequence[Case],
    clauses: Mapping[str, Clause],
    *,
    stale: Iterable[str],
    finished: str | None = None,
    seconds: float | None = None,
    stopped: str = "",
) -> Summary:
    """Return the summary of `run`.

    If cases are missing, stale expectations and unjudged clauses are not reported,
    because the missing cases might concern them. `stopped` says why cases are missing.

    The caller provides the time: without `finished` and `seconds`, the run ends when it
    started, and took the sum of the durations of its cases.

    `conforms` requires more than exit status 0: a full and complete selection in which
    no clause that decides is broken, expected or not, and each was judged. It applies
    only to the requested device: a run on the CPU does not judge the profile ``cuda``,
    and a run on device memory alone never conforms.

    Raises:
        JudgingError: a case cites a clause that is not among `clauses`.
    """
    complete = len(cases) == run.planned
    whole = run.selection.full and complete
    summary = Summary(
        cases=len(cases),
        verdicts=_tally(cases),
        clauses=_clause_results(run, cases, clauses, full=whole),
        stale=tuple(stale) if whole else (),
        conforms=False,
        exit_status=0,
        complete=complete,
        finished=finished or run.started,
        seconds=sum(c.seconds for c in cases) if seconds is None else seconds,
        stopped="" if complete else stopped,
    )
    return _decided(run, summary)


def shortfalls(run: Run, summary: Summary) -> Shortfalls:
    """Return the reasons why the exit status of the run is not 0."""
    strict = run.selection.strict
    results = summary.clauses.items()
    deciding = [(id, r) for id, r in results if decides(run, r)]
    whole = run.selection.full and summary.complete
    no_verdict = (Verdict.NOT_RUN, Verdict.FOLLOWS)
    unjudged = [(id, r) for id, r in deciding if r.verdict in no_verdict and whole]
    standings = {id: standing(run, r) for id, r in results}
    is_newer = bool(run.selection.carried_over)
    expected = list(standings.values()).count(Standing.KNOWN)
    return Shortfalls(
        broken=tuple(id for id, one in standings.items() if one is Standing.NEW),
        blocked=tuple(id for id, one in standings.items() if one is Standing.BLOCKED),
        unjudged=tuple(id for id, r in unjudged if not r.needs),
        not_here=tuple(id for id, r in unjudged if r.needs and strict),
        errors=summary.verdicts.get(Verdict.ERROR, 0),
        stale=len(summary.stale) if strict or not is_newer else 0,
        carried_over=expected if strict and is_newer else 0,
        cut_short=not summary.complete,
        nothing=_judged_nothing(run, summary),
    )


def _judged_nothing(run: Run, summary: Summary) -> bool:
    """Return whether each case was not run, or is about something not claimed."""
    if run.selection.shard or not summary.complete or not summary.cases:
        return False
    idle = {Verdict.NOT_RUN, Verdict.UNSUPPORTED}
    return idle.issuperset(map(Verdict, summary.verdicts))


def standing(run: Run, result: ClauseResult) -> Standing:
    """Return the standing of a clause with this `result`."""
    if result.verdict is Verdict.BLOCKED:
        return Standing.BLOCKED
    if result.verdict.broken:
        if result.expected:
            return Standing.KNOWN
        return Standing.NEW if decides(run, result) else Standing.ADVISORY
    if result.verdict is Verdict.PASS:
        return Standing.HELD
    if result.verdict is Verdict.UNSUPPORTED and not lacks_cuda(run, result):
        return Standing.NOT_CLAIMED
    return Standing.NOT_HERE if result.needs else Standing.NOT_RUN


def lacks_cuda(run: Run, result: ClauseResult) -> bool:
    """Return whether a clause was not judged only as the run used no CUDA device."""
    on_cuda = result.profile == "cuda" and "cuda" not in run.implementation.claims
    is_able = run.implementation.name in JUDGED_WITHOUT_CUDA
    return on_cuda and is_able and result.verdict is Verdict.UNSUPPORTED


def decides(run: Run, result: ClauseResult) -> bool:
    """Return whether the exit status depends on a clause with this `result`.

    Clauses on device memory, on host memory and of long profiles do not count if they
    were not requested and no case judged them.
    """
    on_cpu = run.selection.device == "cpu"
    if result.profile == "cuda" and on_cpu and not result.devices:
        return False
    if result.profile != "cuda" and not run.selection.host and not result.cases:
        return False
    if result.profile in LONG_PROFILES and not result.cases:
        return False
    claimed = result.profile in {"core", *run.implementation.claims}
    return claimed and result.level in required_levels(strict=run.selection.strict)


def required_levels(*, strict: bool) -> frozenset[str]:
    """Return the levels that decide."""
    return frozenset({"MUST", "SHOULD"} if strict else {"MUST"})


def verdict_on(clause: Clause, device: str, cases: Iterable[Case]) -> Verdict:
    """Return the verdict of `clause` from its `cases` if `device` was requested.

    If the device is ``cuda``, a case of the profile ``cuda`` that passed on a simulated
    or emulated device counts as not run.
    """
    on_cuda = clause.profile == "cuda" and device == "cuda"
    return of_clause(
        Verdict.NOT_RUN if on_cuda and _passed_elsewhere(case) else case.verdict
        for case in cases
    )


def _passed_elsewhere(case: Case) -> bool:
    return case.device != "cuda" and case.verdict is Verdict.PASS


def _clause_results(
    run: Run, cases: Sequence[Case], clauses: Mapping[str, Clause], *, full: bool
) -> dict[str, ClauseResult]:
    cited = by_clause(cases)
    if unknown := sorted(cited.keys() - clauses.keys()):
        id = unknown[0]
        raise JudgingError(
            f"the case {cited[id][0].id} cites {id}, which is no clause of the spec"
        )
    return {
        id: _clause_result(run, clause, cited.get(id, []))
        for id, clause in clauses.items()
        if full or id in cited
    }


def _clause_result(run: Run, clause: Clause, cases: list[Case]) -> ClauseResult:
    verdict = verdict_on(clause, run.selection.device, cases)
    if not cases and clause.profile not in {"core", *run.implementation.claims}:
        verdict = Verdict.UNSUPPORTED
    return ClauseResult(
        verdict=verdict,
        level=clause.level,
        profile=clause.profile,
        expected=all(case.expected for case in cases),
        devices=tuple(sorted({case.device for case in cases if case.verdict.judged})),
        cases=_tally(cases),
        needs=needs_of(cases),
    )


def _tally(cases: Iterable[Case]) -> dict[str, int]:
    counts = Counter(case.verdict for case in cases)
    return {str(verdict): counts[verdict] for verdict in Verdict if counts[verdict]}


def _decided(run: Run, summary: Summary) -> Summary:
    short = shortfalls(run, summary)
    flawed = deviates(run, summary)
    lacking = any(
        result.needs and decides(run, result) for result in summary.clauses.values()
    )
    unquestioned = not (short or flawed or lacking)
    return replace(
        summary,
        exit_status=int(bool(short)),
        conforms=run.selection.full and run.selection.host and unquestioned,
    )


def deviates(run: Run, summary: Summary) -> bool:
    """Return whether a clause that decides is broken, expected or not."""
    return any(
        result.verdict.broken and decides(run, result)
        for result in summary.clauses.values()
    )
