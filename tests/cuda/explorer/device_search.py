"""Search all interleavings of small programs over device memory, with kills.

Two states are the same if each process has observed the same, and the world is the
same.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

import interleavings
from device_processes import DeviceMachine, simulated
from device_programs import Scenario
from interleavings import Choice, Found


def start_scenario(scenario: Scenario, kills: int) -> DeviceMachine:
    """Return a machine on which a scenario has been started."""
    machine = DeviceMachine(kills)
    scenario(machine)
    return machine


def search(scenario: Scenario, kills: int = 0, most_states: int = 10**9) -> Found:
    """Search all states of a scenario, until a violation or `most_states` states."""
    with simulated():
        name = scenario.__name__
        return interleavings.search(
            lambda: start_scenario(scenario, kills), name, most_states
        )


def follow(scenario: Scenario, path: list[Choice]) -> str:
    """Repeat a path of a search; return the violation, or ""."""
    kills = sum(what == "kill" for what, _ in path)
    with simulated():
        return interleavings.follow(start_scenario(scenario, kills), path)
