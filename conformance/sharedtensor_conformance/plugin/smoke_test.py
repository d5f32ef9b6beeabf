"""The smoke ladder: before anything is judged, one tensor crosses once, values only.

It says nothing of sharing, so an implementation that copies is judged and not merely
blocked. Where it fails, every case is ``blocked`` and says why. The processes in which
it held are those of the first cases, where these run in the process that climbed it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.harness.matrix import PREFERRED, Configuration, Selection
from sharedtensor_conformance.harness.stage import Stage
from sharedtensor_conformance.harness.watchdog import Watchdog
from sharedtensor_conformance.plugin.runner import Stages


@dataclass(frozen=True)
class Climbed:
    """What the ladder found out: why nothing can be judged, and how stages are kept."""

    blocked: str
    private_shm: bool


def climb(stages: Stages, selection: Selection, limit: float) -> Climbed:
    """Send one tensor; ``blocked`` is empty where everything can be judged.

    It takes at most `limit` seconds, which the watchdog sees to. What was started goes
    on in `stages` where it held, and is ended where it did not.
    """
    stage = stages.of(_first_configuration(stages.implementation, selection))
    watchdog = Watchdog(limit, stages.abandon)
    blocked = "on the ladder: it was interrupted"
    try:
        with watchdog.watching():
            blocked = _crosses(stage)
    except Exception as error:
        blocked = f"on the ladder: {watchdog.evidence if watchdog.bitten else error}"
    finally:
        if blocked:
            stages.retire()
    return Climbed(blocked, stage.private)


def _first_configuration(
    implementation: Implementation, selection: Selection
) -> Configuration:
    strategies = selection.strategies or implementation.strategies
    methods = selection.start_methods or implementation.start_methods
    method = next(one for one in (*PREFERRED, *methods) if one in methods)
    return Configuration(strategies[0], method)


def _crosses(stage: Stage) -> str:
    channel = stage.implementation.channels[0]
    dtype = stage.implementation.dtypes[0]
    tensor = stage.owner.make([1, 0, 1], None, dtype)
    arrived = stage.owner.send(tensor, stage.peer, channel)
    values = [complex(value) for value in arrived.values()]
    if values != [1, 0, 1]:
        return f"on the ladder: [1, 0, 1] of {dtype} arrived as {arrived.values()}"
    stage.drop_all()
    return ""
