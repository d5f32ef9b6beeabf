"""The smoke ladder: before anything is judged, one tensor crosses once, values only.

It says nothing of sharing, so an implementation that copies is judged and not merely
blocked. Where it fails, every case is ``blocked`` and says why.
"""

from __future__ import annotations

from dataclasses import dataclass

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.harness.stage import Stage
from sharedtensor_conformance.harness.watchdog import Watchdog
from sharedtensor_conformance.matrix import PREFERRED, Configuration


@dataclass(frozen=True)
class Climbed:
    """What the ladder found out: why nothing can be judged, and how stages are kept."""

    blocked: str
    private_shm: bool


def climb(name: str, implementation: Implementation, limit: float) -> Climbed:
    """Send one tensor; ``blocked`` is empty where everything can be judged.

    It takes at most `limit` seconds, which the watchdog sees to.
    """
    methods = implementation.start_methods
    method = next(one for one in (*PREFERRED, *methods) if one in methods)
    configuration = Configuration(implementation.strategies[0], method)
    stage = Stage(name, implementation, configuration)
    watchdog = Watchdog(limit, stage.abandon)
    try:
        with watchdog.watching():
            return Climbed(_crosses(stage), stage.private)
    except Exception as error:
        why = watchdog.evidence if watchdog.bitten else error
        return Climbed(f"on the ladder: {why}", stage.private)
    finally:
        stage.close()


def _crosses(stage: Stage) -> str:
    channel = stage.implementation.channels[0]
    dtype = stage.implementation.dtypes[0]
    tensor = stage.owner.make([1, 0, 1], None, dtype)
    arrived = stage.owner.send(tensor, stage.peer, channel)
    values = [complex(value) for value in arrived.values()]
    if values != [1, 0, 1]:
        return f"on the ladder: [1, 0, 1] of {dtype} arrived as {arrived.values()}"
    return ""
