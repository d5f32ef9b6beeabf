"""Merges the reports of all shards of a run into one, and judges it like one run.

Shards belong together if they have the same implementation, spec text, suite, options,
kind of machine and division into shards. The verdicts of clauses and the stale
expectations are computed again from all cases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sharedtensor_conformance.clauses import Clause
from sharedtensor_conformance.report.expectations import Expectations
from sharedtensor_conformance.report.judge import judge
from sharedtensor_conformance.report.records import (
    Case,
    Report,
    Run,
    Shard,
)
from sharedtensor_conformance.report.verdicts import WORST_FIRST, Verdict

SAME_MACHINE = ("python", "platform", "privileged", "private_shm")
"""The facts about a machine that decide which cases run and what is expected."""


class MergeError(Exception):
    """The reports are not all shards of one run; the message is one sentence."""


def merge(
    reports: Sequence[Report],
    clauses: Mapping[str, Clause],
    expectations: Expectations,
) -> Report:
    """Return the report of the run whose shards have these `reports`.

    Args:
        reports: the report of each shard, in any order.
        clauses: the clauses of the installed spec.
        expectations: the expectations of the shards, as they apply on their machines.

    Raises:
        MergeError: the reports do not belong together, one is missing or was cut short,
            or the clauses or expectations are not those of the shards.
    """
    shards = [_shard_of(report) for report in reports]
    first, *others = reports
    for other in others:
        _require_alike(first, other)
    _require_all(reports, shards)
    _require_text(first, clauses)
    in_order = sorted(reports, key=lambda report: _shard_of(report).number)
    cases = merged_cases(report.cases for report in in_order)
    _require_expectations(first.run, cases, expectations)
    run = _merged_run(in_order, shards[0])
    selection, version = run.selection, run.implementation.version
    ends = [report.summary for report in in_order if report.summary]
    summary = judge(
        run,
        cases,
        clauses,
        stale=expectations.stale(cases, version) if selection.full else (),
        finished=max(end.finished for end in ends),
        seconds=round(sum(end.seconds for end in ends), 3),
    )
    return Report(run, tuple(cases), summary)


# What belongs together


def _shard_of(report: Report) -> Shard:
    shard = report.run.selection.shard
    if shard is None:
        raise MergeError(
            f"{report.source} is not of a shard: its run had no --shard and does not "
            f"need merging"
        )
    if not report.complete:
        raise MergeError(
            f"the run of {report.source} was cut short: run the shard {shard} again"
        )
    if left_out := report.run.selection.left_out:
        raise MergeError(
            f"{report.source} lacks {left_out} of the cases of the shard {shard}: run "
            f"it again without "
            f"{', '.join(report.run.selection.left_out_by) or 'plugins that select'}"
        )
    return shard


def _require_alike(first: Report, other: Report) -> None:
    known, found = _facts(first.run), _facts(other.run)
    for what in known | found:
        one, another = known.get(what, "none"), found.get(what, "none")
        if one != another:
            raise MergeError(
                f"{other.source} and {first.source} are not shards of one run: they "
                f"differ in {what} ({another} and {one})"
            )


def _facts(run: Run) -> dict[str, object]:
    """Return the facts that have to be equal; those that explain others come first."""
    selection, shard = run.selection, run.selection.shard
    assert shard is not None
    return {
        "the implementation": str(run.implementation),
        "the declarations of the adapter": run.implementation,
        "the version of the suite": run.suite,
        "the version of the spec": run.spec.version,
        **{f"the text of {id}": hash for id, hash in run.spec.hashes.items()},
        **{f"their machine's {name}": vars(run.machine)[name] for name in SAME_MACHINE},
        "options": " ".join(_options(run)),
        "--strict": selection.strict,
        "the device": selection.device,
        "the expectations": selection.expectations,
        "the number of shards": shard.count,
        "the division into shards, by cases and durations": f"plan {shard.plan}",
    }


def _options(run: Run) -> list[str]:
    return [one for one in run.selection.options if not one.startswith("--shard=")]


def _require_all(reports: Sequence[Report], shards: Sequence[Shard]) -> None:
    seen: dict[int, str] = {}
    for report, shard in zip(reports, shards, strict=True):
        if shard.number in seen:
            raise MergeError(
                f"{report.source} and {seen[shard.number]} are both the shard {shard}"
            )
        seen[shard.number] = report.source
    count = shards[0].count
    if missing := [f"{n}/{count}" for n in range(1, count + 1) if n not in seen]:
        are = "is" if len(missing) == 1 else "are"
        raise MergeError(
            f"{len(missing)} of {count} shards {are} missing: {', '.join(missing)}"
        )


def _require_text(report: Report, clauses: Mapping[str, Clause]) -> None:
    for id in report.run.spec.other_than(clauses):
        raise MergeError(
            f"{report.source} was made with another text of {id} than the installed "
            f"spec has: merge with the suite that ran the shards"
        )


def _require_expectations(
    run: Run, cases: Iterable[Case], expectations: Expectations
) -> None:
    for case in cases:
        if not case.verdict.broken:
            continue
        known = expectations.covers(case, run.implementation.version)
        if bool(known) != case.expected or (known and known.cause != case.cause):
            raise MergeError(
                f"the shards used other expectations: these differ for {case.id}; give "
                f"the file that the shards used with --expectations"
            )


# The merged report


def merged_cases(shards: Iterable[Iterable[Case]]) -> list[Case]:
    """Return the cases of all shards, each once.

    A case that runs last is in each shard with cases that it judges. The merged case
    has the worst of its verdicts, like the case of a run without shards.
    """
    found: dict[str, list[Case]] = {}
    for cases in shards:
        for case in cases:
            found.setdefault(case.id, []).append(case)
    return [as_one(parts) if len(parts) > 1 else parts[0] for parts in found.values()]


def as_one(parts: Sequence[Case]) -> Case:
    """Return one case from its results in several places, with the worst verdict."""
    broken = [case for case in parts if case.verdict.broken]
    held = [case for case in parts if case.verdict is Verdict.PASS]
    counting = broken or held or parts
    worst = min(
        counting,
        key=lambda case: (
            case.expected,
            WORST_FIRST.index(case.verdict),
            case.needs is not None,  # any other reason keeps the run from passing
        ),
    )
    return replace(
        worst,
        evidence="\n".join(dict.fromkeys(c.evidence for c in counting if c.evidence)),
        checks=sum(case.checks for case in parts),
        remote_calls=sum(case.remote_calls for case in parts),
        seconds=round(sum(case.seconds for case in parts), 6),
    )


def _merged_run(reports: Sequence[Report], shard: Shard) -> Run:
    first = reports[0].run
    return replace(
        first,
        selection=replace(
            first.selection,
            full=shard.full,
            options=tuple(_options(first)),
            shard=None,
        ),
        planned=shard.cases,
        started=min(report.run.started for report in reports),
    )
