"""Every interleaving of small programs over device memory, and a kill at each step.

A state is known by what each process has observed and what the world holds.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

import interleavings
from device_processes import Machine, simulated
from device_programs import Scenario
from interleavings import Choice, Found


def started(scenario: Scenario, kills: int) -> Machine:
    """Return a machine on which a scenario begins."""
    machine = Machine(kills)
    scenario(machine)
    return machine


def search(scenario: Scenario, kills: int = 0, most_states: int = 10**9) -> Found:
    """Look at all states of a scenario, or stop at a violation or at `most_states`."""
    with simulated():
        name = scenario.__name__
        return interleavings.search(lambda: started(scenario, kills), name, most_states)


def follow(scenario: Scenario, path: list[Choice]) -> str:
    """Take a path of a search again; return what was violated."""
    kills = sum(what == "kill" for what, _ in path)
    with simulated():
        return interleavings.follow(started(scenario, kills), path)
