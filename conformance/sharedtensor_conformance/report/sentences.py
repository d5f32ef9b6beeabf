"""The sentences about a run and about groups of failures that all its views share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from sharedtensor_conformance.adapter import LONG_PROFILES
from sharedtensor_conformance.report import scope
from sharedtensor_conformance.report.groups import Group, basic_first
from sharedtensor_conformance.report.judge import (
    Shortfalls,
    Standing,
    deviates,
    lacks_cuda,
    required_levels,
)
from sharedtensor_conformance.report.known import Breach, in_number
from sharedtensor_conformance.report.needs import NOT_HERE, reason
from sharedtensor_conformance.report.records import STAND_INS
from sharedtensor_conformance.report.run_view import OF_BREACH, RunView
from sharedtensor_conformance.report.scope import plural
from sharedtensor_conformance.report.verdicts import Verdict

# The verdict


def verdict(view: RunView) -> str:
    """Return the verdict of the run on the implementation, in one sentence."""
    return f"{_verdict(view)}{_device_note(view)}."


def _verdict(view: RunView) -> str:
    run, summary = view.run, view.summary
    if view.short == Shortfalls(cut_short=True):
        said = f"{_cut_short(view)}, so far {_tallied(view)}"
        return f"{view.name} was not judged completely: {said}"
    found = {Verdict(one) for one in summary.verdicts}
    if Verdict.BLOCKED in found and not any(one.judged for one in found):
        return f"{view.name} was not judged: {_reasons(view)}"
    if summary.exit_status:
        return f"{view.name} does not pass: {_reasons(view)}"
    if not run.selection.full:
        part = "shard" if run.selection.shard else "partial selection"
        return f"{view.name} passes this {part}: {_tallied(view)}"
    if not run.selection.host:
        return f"{view.name} passes on device memory: {_tallied(view)}"
    if not summary.conforms and deviates(run, summary):
        no = "has no new failures, but does not conform"
        return f"{view.name} {no}: {_tallied(view)}"
    if not summary.conforms:
        return f"{view.name} passes: {_tallied(view)}"
    levels = " and ".join(sorted(required_levels(strict=run.selection.strict)))
    return (
        f"{view.name} conforms: every {levels} of core and of the claimed profiles was "
        f"judged and held; {_tallied(view)}"
    )


def _tallied(view: RunView) -> str:
    said = [*_held(view), *_advisory(view)]
    if count := view.known_count:
        kinds = f": {kinds}" if (kinds := ", ".join(_kinds(view))) else ""
        said.append(f"{plural(count, 'clause')} broken (known{kinds})")
    if not_here := {id for ids in view.by_need.values() for id in ids}:
        said.append(f"{len(not_here)} {NOT_HERE}")
    return ", ".join(said)


def _kinds(view: RunView) -> Iterator[str]:
    """Yield how many known deviations break the documentation, or only the spec."""
    for breach in (Breach.DOCUMENTATION, Breach.SPECIFICATION):
        if count := view.counts[OF_BREACH[breach]]:
            yield in_number(count, breach)


def _held(view: RunView) -> list[str]:
    """Return how many clauses held; those that were not asked for only in part."""
    held = [id for id in view.summary.clauses if view.standing(id) is Standing.HELD]
    count = sum(scope.asked_for(view.run, id) for id in held)
    others = len(held) - count
    in_part = [f"{plural(others, 'other')} held in part"] if others else []
    return [f"{plural(count, 'clause')} {scope.held(view.run)}", *in_part]


def _advisory(view: RunView) -> list[str]:
    count = view.counts[Standing.ADVISORY]
    return [f"{plural(count, 'clause')} broken (advisory)"] if count else []


def _reasons(view: RunView) -> str:
    short = view.short
    counted = (
        (len(short.broken), "clause", "broken (new)"),
        (len(short.blocked), "clause", "blocked and not judged"),
        (len(short.unjudged), "clause", "judged by no case"),
        (len(short.not_here), "clause", f"{NOT_HERE} (--strict asks for every clause)"),
        (short.errors, "case", "ended in an error of the suite or the adapter"),
        (short.stale, "expectation", "stale"),
        (short.carried_over, "clause", "broken as in an earlier release"),
    )
    said = [f"{plural(n, what)} {state}" for n, what, state in counted if n]
    said += _advisory(view)
    if short.nothing:
        counts = (f"{n} {verdict}" for verdict, n in view.summary.verdicts.items())
        why = f", since {reason(view.by_need)}" if view.by_need else ""
        said.append(f"nothing was judged ({', '.join(counts)}){why}")
    if short.cut_short:
        said.append(_cut_short(view))
    if len(short.broken) < 2:
        return ", ".join(said)
    first = basic_first(short.broken, view.summary.clauses)[0]
    return f"{', '.join(said)}; start with {first}"


def _device_note(view: RunView) -> str:
    if "cuda" not in view.run.implementation.claims:
        return ""
    cuda = [r for r in view.summary.clauses.values() if r.profile == "cuda"]
    devices = {device for result in cuda for device in result.devices}
    if "cuda" in devices or not (cuda or view.run.selection.full):
        return ""
    if where := " and the ".join(sorted(STAND_INS & devices)):
        return f"; profile cuda was judged on the {where} device only, never on CUDA"
    return "; profile cuda was not judged"


# What was covered


def notes(view: RunView) -> Iterator[str]:
    """Yield sentences about the release, the GPUs and the missing cases of a run."""
    run, selection = view.run, view.run.selection
    if selection.carried_over:
        yield _newer_than_recorded(view)
    if scope.ONE_PER_CLAUSE in selection.options:
        yield f"Held means {scope.held(run)}: a full run may find that it is broken."
    for id in view.not_shown:
        yield (
            f"{id} passed in this run and still counts as broken, because its known "
            "deviation is intermittent."
        )
    yield from _not_run(view)
    if run.machine.cuda:
        yield scope.met(run.machine.cuda)
    if selection.left_out:
        who = ", ".join(selection.left_out_by) or "a plugin of pytest"
        chosen = run.planned + selection.left_out
        yield f"Of {chosen} chosen cases, {selection.left_out} were left out by {who}."
    if selection.shard:
        yield (
            "This is only one shard of a run: shared-tensor-spec merge judges all "
            "shards together."
        )
    if not view.summary.complete:
        yield f"The run was {_cut_short(view)}."


def _not_run(view: RunView) -> Iterator[str]:
    """Yield which clauses of a full run need another command, or another build."""
    results = view.summary.clauses.values()
    no_cuda = sum(lacks_cuda(view.run, result) for result in results)
    if no_cuda:
        count = plural(no_cuda, "clause")
        yield f"Not run: {count} of the profile cuda, which need a CUDA device."
    for profile in sorted(LONG_PROFILES):
        left_out = [r for r in results if r.profile == profile and not r.cases]
        claimed = profile in view.run.implementation.claims
        if left_out and claimed and view.run.selection.full:
            count = plural(len(left_out), "clause")
            how = f"--profile={profile} runs it"
            yield f"Not run: {count} of the profile {profile} ({how})."


def _newer_than_recorded(view: RunView) -> str:
    """Return what a run shows of a release whose deviations were not recorded yet."""
    before = view.run.selection.carried_over
    results = view.summary.clauses.items()
    broken = [(id, r) for id, r in results if r.verdict.broken]
    known = sum(result.expected for _, result in broken)
    new = [id for id, result in broken if not result.expected]
    said = (
        f"{view.name} is newer than {before}, the newest release whose "
        f"deviations were recorded. Broken as in {before}: {plural(known, 'clause')}. "
        f"Newly broken: {', '.join(new) or 'none'}."
    )
    if view.run.selection.full and view.summary.complete:
        said += (
            f" Known deviations that no longer occur: {len(view.summary.stale)}. To "
            "update the file: shared-tensor-spec expectations update REPORT."
        )
    return said


def stale_title(view: RunView) -> str:
    """Return the words above the expectations that no case shows any more."""
    before = view.run.selection.carried_over
    return (
        f"Known deviations of {before} that no longer occur"
        if before
        else "Known deviations that no longer occur (stale expectations)"
    )


def _cut_short(view: RunView) -> str:
    """Return after how many cases an incomplete run ended, and why."""
    summary = view.summary
    why = f" ({summary.stopped})" if summary.stopped else ""
    planned = view.run.planned
    return f"cut short after {summary.cases} of {planned} planned cases{why}"


# A group of failures


def facts(view: RunView, group: Group) -> str:
    """Return level, profile and standing of a group's clause, and all its cases."""
    counts = view.summary.clauses[group.first].cases
    return f"{label(view, group)}; cases of {group.first}: {_counted(counts)}"


def of_group(group: Group) -> str:
    """Return how many cases have the cause of a group, by their verdict."""
    counts = Counter(str(case.verdict) for case in group.cases)
    return f"cases with this cause: {_counted(counts)}"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def label(view: RunView, group: Group) -> str:
    """Return level, profile and standing of a group's most basic clause."""
    result = view.summary.clauses[group.first]
    advisory = view.standing(group.first) is Standing.ADVISORY
    before = view.run.selection.carried_over
    known = view.known.said_of([group.shown]) + ", advisory" * advisory
    known += f", as in {before}" if group.expected and before else ""
    where = " and the ".join(sorted(STAND_INS.intersection(result.devices)))
    device = f" on the {where} device" if where else ""
    return f"{result.level}, profile {result.profile}, {known}{device}"


def about(group: Group) -> list[str]:
    """Return which other clauses are broken with it, and whether failures vanished."""
    return [said for said in (_others(group), _vanished(group)) if said]


def _others(group: Group) -> str:
    count = len(group.others)
    if not count:
        return ""
    if group.shown.verdict is Verdict.BLOCKED:
        return f"not judged: {group.first} and {plural(count, 'other clause')}"
    fail = "fails" if count == 1 else "fail"
    how = "for the same cause" if group.cause else "in the same way"
    if group.rests:
        how += ", or depend on it" if count > 1 else ", or depends on it"
    others = plural(count, "other clause")
    return f"start with {group.first}: {others} {fail} {how}: {', '.join(group.others)}"


def _vanished(group: Group) -> str:
    """Return how many failures vanished when they were repeated.

    The command that repeats such a group runs other cases, too, so one case is named.
    """
    vanished = [case for case in group.cases if case.state_dependent]
    if not vanished:
        return ""
    return (
        f"state-dependent: {len(vanished)} of "
        f"{plural(len(group.cases), 'broken case')} held when repeated in fresh "
        f"processes, so earlier cases or timing matter; for example {vanished[0].id}"
    )
