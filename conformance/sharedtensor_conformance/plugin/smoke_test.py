"""Runs the smoke test: sends one tensor before any case runs, and checks its values.

If it fails, every case gets the verdict ``blocked`` with the reason. The smoke test
does not check sharing, so that an implementation that copies is still judged. The first
cases use the processes of the smoke test, if they run in the same pytest process.
"""

from __future__ import annotations

from dataclasses import dataclass

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.harness.case.axes import Configuration
from sharedtensor_conformance.harness.stage.stage import Stage
from sharedtensor_conformance.plugin.matrix import (
    PREFERRED_METHODS,
    Selection,
)
from sharedtensor_conformance.plugin.stages import Stages
from sharedtensor_conformance.plugin.watchdog import Watchdog


@dataclass(frozen=True)
class SmokeTest:
    """The result: why no case can be judged, and whether /dev/shm is private."""

    blocked: str
    private_shm: bool


def run_smoke_test(stages: Stages, selection: Selection, limit: float) -> SmokeTest:
    """Send one tensor; ``blocked`` is empty if cases can be judged.

    The watchdog limits it to `limit` seconds. If it succeeds, its processes stay in
    `stages` for the first cases; else they are ended.
    """
    first = _first_configuration(stages.implementation, selection)
    stage = stages.of(first)
    watchdog = Watchdog(limit, stages.abandon)
    failed = "it was interrupted"
    try:
        with watchdog.watching():
            failed = _send_one(stage)
    except Exception as error:
        failed = watchdog.evidence if watchdog.expired else str(error)
    finally:
        private_shm = stage.supervision.private
        if failed:
            stages.retire()
    where = f"in the smoke test under {first.start_method}"
    return SmokeTest(f"{where}: {failed}" if failed else "", private_shm)


def _first_configuration(
    implementation: Implementation, selection: Selection
) -> Configuration:
    strategies = selection.strategies or implementation.strategies
    methods = selection.start_methods or implementation.start_methods
    first = ("fork",) if selection.one_per_clause else ()
    method = next(
        one for one in (*first, *PREFERRED_METHODS, *methods) if one in methods
    )
    return Configuration(strategies[0], method)


def _send_one(stage: Stage) -> str:
    """Return what is wrong with the received tensor; empty if it is right."""
    channel = stage.implementation.channels[0]
    dtype = stage.implementation.dtypes[0]
    tensor = stage.owner.make([1, 0, 1], None, dtype)
    arrived = stage.owner.send(tensor, stage.peer, channel)
    values = [complex(value) for value in arrived.values()]
    if values != [1, 0, 1]:
        return f"[1, 0, 1] of {dtype} arrived as {arrived.values()}"
    stage.drop_all()
    return ""
