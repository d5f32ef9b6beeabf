"""Describes what a run covered: its selection, its shard, and whether it was complete.

All views of a report show this, so that nobody mistakes a partial run for a full one.
"""

from __future__ import annotations

from collections.abc import Iterator

from sharedtensor_conformance.report.records import Cuda, Run, Summary

CLAUSE = "--clause="
"""The option that asks for a clause."""

ONE_PER_CLAUSE = "--one-per-clause"
"""The option that runs one case of each clause."""


def selected(run: Run) -> str:
    """Return a short description of the selection."""
    selection = run.selection
    if selection.shard:
        of = "full" if selection.shard.full else "partial"
        return f"shard {selection.shard} of a {of} selection"
    if selection.full and not selection.host:
        return "device memory alone"
    return "full selection" if selection.full else "partial selection"


def asked_for(run: Run, clause: str) -> bool:
    """Return whether a clause was asked for, by name or since all are.

    The cases of one clause may cite others, which are then judged in part.
    """
    names = [one for one in run.selection.options if one.startswith(CLAUSE)]
    return not names or f"{CLAUSE}{clause}" in names


def held(run: Run) -> str:
    """Return the words for a clause that no case of the run has broken."""
    one = ONE_PER_CLAUSE in run.selection.options
    return "held in the one case that was run" if one else "held"


def notes(run: Run, summary: Summary) -> Iterator[str]:
    """Yield sentences about the release, the GPUs and the missing cases of a run."""
    selection = run.selection
    if selection.carried_over:
        yield newer_than_recorded(run, summary)
    if ONE_PER_CLAUSE in selection.options:
        yield f"Held means {held(run)}: a whole run may break the clause."
    if run.machine.cuda:
        yield met(run.machine.cuda)
    if selection.left_out:
        who = ", ".join(selection.left_out_by) or "a plugin of pytest"
        chosen = run.planned + selection.left_out
        yield f"Of {chosen} chosen cases, {selection.left_out} were left out by {who}."
    if selection.shard:
        yield (
            "This is only one shard of a run: shared-tensor-spec merge judges all "
            "shards together."
        )
    if not summary.complete:
        yield f"The run was {cut_short(run, summary)}."


def newer_than_recorded(run: Run, summary: Summary) -> str:
    """Return what a run shows of a release whose deviations were not recorded yet."""
    before = run.selection.carried_over
    results = summary.clauses.items()
    broken = [(id, r) for id, r in results if r.verdict.broken]
    known = sum(result.expected for _, result in broken)
    new = [id for id, result in broken if not result.expected]
    said = (
        f"{run.implementation} is newer than {before}, the newest release whose "
        f"deviations were recorded. Broken as in {before}: {plural(known, 'clause')}. "
        f"Newly broken: {', '.join(new) or 'none'}."
    )
    if run.selection.full and summary.complete:
        said += (
            f" Expectations that nothing shows any more: {len(summary.stale)}. To "
            "record it: shared-tensor-spec expectations update REPORT."
        )
    return said


def stale_title(run: Run) -> str:
    """Return the words above the expectations that no case shows any more."""
    before = run.selection.carried_over
    return f"No longer as in {before}" if before else "Stale expectations"


def plural(count: int, noun: str) -> str:
    """Return the count with its noun: ``1 case``, ``2 cases``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def cut_short(run: Run, summary: Summary) -> str:
    """Return after how many cases an incomplete run ended, and why."""
    why = f" ({summary.stopped})" if summary.stopped else ""
    return f"cut short after {summary.cases} of {run.planned} planned cases{why}"


def met(cuda: Cuda) -> str:
    """Return the GPUs, the driver and the libraries of a run, in one sentence."""
    gpus = ", ".join(map(str, cuda.gpus)) or "none"
    driver = " ".join(filter(None, ("driver", cuda.driver)))
    said = [f"{driver} for CUDA {cuda.cuda or '?'}"]
    said += [f"{name} {version}" for name, version in cuda.libraries.items()]
    said += [f"runtime of {name} {version}" for name, version in cuda.runtimes.items()]
    where = "Emulated GPUs, never CUDA" if cuda.emulated else "GPUs"
    return f"{where}: {gpus}; {', '.join(said)}."
