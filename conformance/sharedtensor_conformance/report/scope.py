"""What a run covered, in words: a selection, a shard of one, and how far it came.

A part of the suite must not be taken for all of it, so whatever shows a report says it.
"""

from __future__ import annotations

from collections.abc import Iterator

from sharedtensor_conformance.report.records import Cuda, Run, Summary


def selected(run: Run) -> str:
    """Return what was selected, in a few words."""
    selection = run.selection
    if selection.shard:
        of = "full" if selection.shard.full else "partial"
        return f"shard {selection.shard} of a {of} selection"
    if selection.full and not selection.host:
        return "device memory alone"
    return "full selection" if selection.full else "partial selection"


def notes(run: Run, summary: Summary) -> Iterator[str]:
    """Yield sentences about a run: the GPUs, and what is missing but by its options."""
    selection = run.selection
    if run.machine.cuda:
        yield met(run.machine.cuda)
    if selection.left_out:
        who = ", ".join(selection.left_out_by) or "a plugin of pytest"
        chosen = run.planned + selection.left_out
        yield f"Of {chosen} chosen cases, {selection.left_out} were left out by {who}."
    if selection.shard:
        yield (
            "One shard says nothing of the whole: shared-tensor-spec merge judges all "
            "of them together."
        )
    if not summary.complete:
        yield f"The run was {cut_short(run, summary)}."


def cut_short(run: Run, summary: Summary) -> str:
    """Return how far a run came that did not reach its end, and why it did not."""
    why = f" ({summary.stopped})" if summary.stopped else ""
    return f"cut short after {summary.cases} of {run.planned} planned cases{why}"


def met(cuda: Cuda) -> str:
    """Return the GPUs, the driver and the libraries that a run met, in one sentence."""
    gpus = ", ".join(map(str, cuda.gpus)) or "none"
    driver = " ".join(filter(None, ("driver", cuda.driver)))
    said = [f"{driver} for CUDA {cuda.cuda or '?'}"]
    said += [f"{name} {version}" for name, version in cuda.libraries.items()]
    said += [f"runtime of {name} {version}" for name, version in cuda.runtimes.items()]
    where = "Emulated GPUs, never CUDA" if cuda.emulated else "GPUs"
    return f"{where}: {gpus}; {', '.join(said)}."
