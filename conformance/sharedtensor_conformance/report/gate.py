"""The gate: may a change go in, judging by reports that other jobs have written.

A run has an exit status of its own. The gate is for the place where several come
together: it trusts no summary but judges the cases again, it asks for whole runs of the
very text that is installed, and it lets the result of one machine (with a GPU, say)
complete that of another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sharedtensor_conformance.adapter import PROFILES
from sharedtensor_conformance.clauses import Clause
from sharedtensor_conformance.report.judge import required_levels
from sharedtensor_conformance.report.records import STAND_INS, Case, Report
from sharedtensor_conformance.report.verdicts import ONE_DEVICE, Verdict, of_clause


class GateError(Exception):
    """The gate was asked for something that cannot be; the message is a sentence."""


@dataclass(frozen=True)
class Decision:
    """What the gate says.

    Args:
        held: the clauses that were required and held.
        tolerated: a sentence for each clause whose expected deviation was let through,
            or that cannot be judged where there is one device.
        missing: a sentence for everything that keeps the gate closed.
    """

    held: tuple[str, ...]
    tolerated: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def open(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing


def required_profiles(names: str) -> tuple[str, ...]:
    """Return the profiles in a list with commas.

    Raises:
        GateError: there is none, or one that does not exist.
    """
    profiles = tuple(name.strip() for name in names.split(",") if name.strip())
    if not profiles:
        raise GateError("no profile is required, so the gate could only be open")
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

    An expected deviation is a deviation: without `allow_expected` it keeps the gate
    closed. A result of a simulated or emulated device never counts for the profile
    ``cuda``. Most runners have one GPU: what needs two is let through, and said.
    """
    missing = list(_unusable(reports))
    held: list[str] = []
    tolerated: list[str] = []
    levels = required_levels(strict=strict)
    for profile in profiles:
        of_profile = [c for c in clauses.values() if c.profile == profile]
        required = [clause for clause in of_profile if clause.level in levels]
        missing += _unrequirable(reports, profile, required)
        missing += _other_text(reports, profile, required)
        for clause in required:
            cases = [c for r in reports for c in r.cases if clause.id in c.clauses]
            problem, is_expected = _problem(clause, cases)
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
                f"{report.source} is about {other} and {first.source} about {subject}, "
                f"so they do not add up"
            )
        if not report.complete:
            yield (
                f"{report.source} is not complete: {len(report.cases)} of "
                f"{report.run.planned} planned cases are in it"
            )
        if report.run.selection.shard:
            yield (
                f"{report.source} is shard {report.run.selection.shard} of a run: "
                f"merge all shards first"
            )
        elif not report.run.selection.full:
            yield (
                f"{report.source} is of a partial selection: run it again without "
                f"options that select"
            )


def _unrequirable(
    reports: Sequence[Report], profile: str, required: Sequence[Clause]
) -> Iterator[str]:
    if not required:
        yield (
            f"the profile {profile} has no clause that could be required, so nothing "
            f"can be said of it"
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
                f"{report.source} judged another text than the installed spec has for "
                f"{', '.join(other)} (profile {profile})"
            )


def _problem(clause: Clause, cases: Sequence[Case]) -> tuple[str, bool]:
    """Return why the clause is not held, or "", and whether that was expected."""
    counting = [case for case in cases if _counts(clause, case)]
    verdict = of_clause(case.verdict for case in counting)
    name = f"{clause.id} ({clause.title})"
    if verdict is Verdict.PASS:
        in_part = f"{name} was judged in part on CUDA: {ONE_DEVICE}"
        return in_part if _lacks_a_device(clause, cases) else "", False
    if verdict.broken:
        is_expected = verdict is not Verdict.ERROR and all(
            case.expected for case in counting
        )
        known = ", as expected" if is_expected else ""
        broken = sum(case.verdict.broken for case in counting)
        said = f"{verdict}, {broken} of {len(counting)} cases"
        return f"{name} is broken{known}: {said}", is_expected
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
    """Return whether all that keeps cases from being judged is a second device.

    A case that needs two has passed where another report is of a machine with two.
    """
    counting = [case for case in cases if _counts(clause, case)]
    passed = {case.id for case in counting if case.verdict is Verdict.PASS}
    others = [case for case in counting if case.id not in passed]
    reasons = {(case.verdict, case.evidence) for case in others}
    return reasons == {(Verdict.NOT_RUN, ONE_DEVICE)}


def _counts(clause: Clause, case: Case) -> bool:
    return clause.profile != "cuda" or case.device == "cuda"
