"""Decides from several reports whether profiles hold, so that CI can accept a change.

Each run has its own exit status. The gate combines several reports: for example, the
report of a machine with a GPU completes that of a machine without one. It judges the
cases again instead of trusting the summaries, and it requires full runs of the
installed text of the spec.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sharedtensor_conformance.adapter import PROFILES
from sharedtensor_conformance.clauses import Clause
from sharedtensor_conformance.report.judge import required_levels
from sharedtensor_conformance.report.known import Known
from sharedtensor_conformance.report.needs import needs_of, reason
from sharedtensor_conformance.report.records import STAND_INS, Case, Report, by_clause
from sharedtensor_conformance.report.verdicts import ONE_DEVICE, Verdict, of_clause


class GateError(Exception):
    """The arguments of the gate are invalid; the message is one sentence."""


@dataclass(frozen=True)
class Decision:
    """The decision of the gate.

    Args:
        held: the required clauses that held.
        tolerated: a sentence for each clause that is tolerated: it has an expected
            deviation, or needs two devices where there is only one.
        missing: a sentence for each reason why the gate is closed.
    """

    held: tuple[str, ...]
    tolerated: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def open(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing


def required_profiles(names: str) -> tuple[str, ...]:
    """Return the profiles in a comma-separated list.

    Raises:
        GateError: the list is empty, or a profile does not exist.
    """
    profiles = tuple(name.strip() for name in names.split(",") if name.strip())
    if not profiles:
        raise GateError("no profile is required: name at least one")
    for profile in profiles:
        if profile not in PROFILES:
            raise GateError(
                f"there is no profile {profile!r}; profiles are {', '.join(PROFILES)}"
            )
    return tuple(dict.fromkeys(profiles))


def decide(
    reports: Sequence[Report],
    profiles: Iterable[str],
    clauses: Mapping[str, Clause],
    *,
    strict: bool = False,
    allow_expected: bool = False,
) -> Decision:
    """Return whether the `reports` together show that the `profiles` hold.

    Without `allow_expected`, a known deviation closes the gate. A result of a
    simulated or emulated device never counts for the profile ``cuda``. A case that
    needs two GPUs is tolerated, because most runners have one; a sentence says so.
    """
    missing = list(_unusable(reports))
    held: list[str] = []
    tolerated: list[str] = []
    levels = required_levels(strict=strict)
    known = Known(reports[0].run)
    cited = by_clause(case for report in reports for case in report.cases)
    for profile in profiles:
        of_profile = [c for c in clauses.values() if c.profile == profile]
        required = [clause for clause in of_profile if clause.level in levels]
        missing += _unrequirable(reports, profile, required)
        missing += _other_text(reports, profile, required)
        for clause in required:
            cases = cited.get(clause.id, [])
            problem, is_expected = _problem(clause, cases, known)
            if not problem:
                held.append(clause.id)
            elif (is_expected and allow_expected) or _lacks_a_device(clause, cases):
                tolerated.append(problem)
            else:
                missing.append(problem)
    return Decision(tuple(held), tuple(tolerated), tuple(missing))


def _unusable(reports: Sequence[Report]) -> Iterator[str]:
    first, *_ = reports
    subject = first.run.implementation
    for report in reports:
        other = report.run.implementation
        if (other.name, other.version) != (subject.name, subject.version):
            yield (
                f"{report.source} is of {other} and {first.source} is of {subject}, so "
                f"they cannot be combined"
            )
        if not report.complete:
            yield (
                f"{report.source} is not complete: it has {len(report.cases)} of "
                f"{report.run.planned} planned cases"
            )
        if report.run.selection.shard:
            yield (
                f"{report.source} is shard {report.run.selection.shard} of a run: "
                f"merge all shards first"
            )
        elif not report.run.selection.full:
            yield (
                f"{report.source} is of a partial selection: run the suite again "
                f"without options that select cases"
            )


def _unrequirable(
    reports: Sequence[Report], profile: str, required: Sequence[Clause]
) -> Iterator[str]:
    if not required:
        yield (
            f"the profile {profile} has no clause that can be required, so the gate "
            f"cannot decide about it"
        )
    if not any(
        profile in {"core", *report.run.implementation.claims} for report in reports
    ):
        yield f"the profile {profile} is not claimed by {reports[0].run.implementation}"


def _other_text(
    reports: Sequence[Report], profile: str, required: Sequence[Clause]
) -> Iterator[str]:
    for report in reports:
        hashes = report.run.spec.hashes
        other = [c.id for c in required if hashes.get(c.id) != c.hash]
        if other:
            yield (
                f"{report.source} was made with another text of {', '.join(other)} "
                f"(profile {profile}) than the installed spec has: run the suite again"
            )


def _problem(clause: Clause, cases: Sequence[Case], known: Known) -> tuple[str, bool]:
    """Return why the clause is not held, or "", and whether that was expected."""
    counting = [case for case in cases if _counts(clause, case)]
    verdict = of_clause(case.verdict for case in counting)
    name = f"{clause.id} ({clause.title})"
    if verdict is Verdict.PASS:
        in_part = f"{name} was judged only in part on CUDA: {ONE_DEVICE}"
        return in_part if _lacks_a_device(clause, cases) else "", False
    if verdict.broken:
        is_expected = verdict is not Verdict.ERROR and all(
            case.expected for case in counting
        )
        broken = sum(case.verdict.broken for case in counting)
        said = f"{verdict}, {broken} of {len(counting)} cases"
        return f"{name} is broken ({known.said_of(counting)}): {said}", is_expected
    if needs := needs_of(counting):
        return f"{name} was not judged, since {reason(needs)}", False
    if clause.profile == "cuda":
        return f"{name} was not judged on CUDA: {_why_not_on_cuda(cases)}", False
    return f"{name} was judged by no case: {verdict}", False


def _why_not_on_cuda(cases: Sequence[Case]) -> str:
    said = [case.evidence for case in cases if case.device == "cuda" and case.evidence]
    if said:
        return said[0].strip().splitlines()[0].rstrip(".")
    stand_ins = sorted(STAND_INS & {case.device for case in cases})
    where = " and the ".join(stand_ins)
    return f"on the {where} device only" if where else "no case had a device"


def _lacks_a_device(clause: Clause, cases: Sequence[Case]) -> bool:
    """Return whether all cases that did not pass need a second device.

    A case that needs two devices counts as passed if any of the reports has it passed.
    """
    counting = [case for case in cases if _counts(clause, case)]
    passed = {case.id for case in counting if case.verdict is Verdict.PASS}
    others = [case for case in counting if case.id not in passed]
    reasons = {(case.verdict, case.evidence) for case in others}
    return reasons == {(Verdict.NOT_RUN, ONE_DEVICE)}


def _counts(clause: Clause, case: Case) -> bool:
    return clause.profile != "cuda" or case.device == "cuda"
