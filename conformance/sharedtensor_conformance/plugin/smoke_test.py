"""The smoke test: before anything is judged, one tensor is sent once, values only.

It says nothing of sharing, so an implementation that copies is judged and not merely
blocked. Where it fails, every case is ``blocked`` and says why. The processes in which
it held are those of the first cases, where these run in the same pytest process.
"""

from __future__ import annotations

from dataclasses import dataclass

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.harness.matrix import PREFERRED, Configuration, Selection
from sharedtensor_conformance.harness.stage import Stage
from sharedtensor_conformance.harness.watchdog import Watchdog
from sharedtensor_conformance.plugin.stages import Stages


@dataclass(frozen=True)
class SmokeTest:
    """What it found out: why nothing can be judged, and how stages are kept."""

    blocked: str
    private_shm: bool


def run_smoke_test(stages: Stages, selection: Selection, limit: float) -> SmokeTest:
    """Send one tensor; ``blocked`` is empty where everything can be judged.

    It takes at most `limit` seconds, which the watchdog sees to. What was started goes
    on in `stages` where it held, and is ended where it did not.
    """
    stage = stages.of(_first_configuration(stages.implementation, selection))
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
    return SmokeTest(f"in the smoke test: {failed}" if failed else "", private_shm)


def _first_configuration(
    implementation: Implementation, selection: Selection
) -> Configuration:
    strategies = selection.strategies or implementation.strategies
    methods = selection.start_methods or implementation.start_methods
    first = ("fork",) if selection.one_per_clause else ()
    method = next(one for one in (*first, *PREFERRED, *methods) if one in methods)
    return Configuration(strategies[0], method)


def _send_one(stage: Stage) -> str:
    """Return what is wrong with what arrives; empty where nothing is."""
    channel = stage.implementation.channels[0]
    dtype = stage.implementation.dtypes[0]
    tensor = stage.owner.make([1, 0, 1], None, dtype)
    arrived = stage.owner.send(tensor, stage.peer, channel)
    values = [complex(value) for value in arrived.values()]
    if values != [1, 0, 1]:
        return f"[1, 0, 1] of {dtype} arrived as {arrived.values()}"
    stage.drop_all()
    return ""
