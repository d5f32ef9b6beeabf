"""Describes what a run covered: its selection, its shard, and its devices.

All views of a report show this, so that nobody mistakes a partial run for a full one.
"""

from __future__ import annotations

from sharedtensor_conformance.report.records import Cuda, Run

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


def plural(count: int, noun: str) -> str:
    """Return the count with its noun: ``1 case``, ``2 cases``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def met(cuda: Cuda) -> str:
    """Return the GPUs, the driver and the libraries of a run, in one sentence."""
    gpus = ", ".join(map(str, cuda.gpus)) or "none"
    driver = " ".join(filter(None, ("driver", cuda.driver)))
    said = [f"{driver} for CUDA {cuda.cuda or '?'}"]
    said += [f"{name} {version}" for name, version in cuda.libraries.items()]
    said += [f"runtime of {name} {version}" for name, version in cuda.runtimes.items()]
    where = "Emulated GPUs, never CUDA" if cuda.emulated else "GPUs"
    return f"{where}: {gpus}; {', '.join(said)}."
