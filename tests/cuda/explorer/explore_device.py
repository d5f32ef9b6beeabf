"""Explore the protocol of device memory: all searches, all faults.

    python tests/cuda/explorer/explore_device.py --states=200000 --out=FILE

A search takes small programs in all interleavings, with kills. Two states are the same
if each process has observed the same, and the world is the same.

The results are written to a record. It says by which path each fault is found, and the
tests repeat only that.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

import device_world
import interleavings
from device_faults import FAULTS, Fault
from device_processes import DeviceMachine, simulated
from device_programs import SCENARIOS, Scenario
from interleavings import Choice, Found
from soak.circumstances import circumstances

KILLS = (0, 1)
STATES_OF_A_FAULT = 50_000


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


def explore(most_states: int) -> dict[str, Any]:
    """Return the whole record. A search stops at `most_states` states."""
    return {
        "invariants": invariants(),
        "searches": [
            search_entry(name, kills, most_states)
            for name in SCENARIOS
            for kills in KILLS
        ],
        "faults": [fault_entry(fault) for fault in FAULTS.values()],
    }


def invariants() -> dict[str, str]:
    """Return the text of each invariant in the docstring of `device_world`, by name."""
    return interleavings.invariants_of(device_world)


def search_entry(name: str, kills: int, most_states: int) -> dict[str, Any]:
    """Search one scenario with at most this many kills."""
    scenario = SCENARIOS[name]
    found = search(scenario, kills, most_states)
    return {
        "scenario": name,
        "sentence": " ".join((scenario.__doc__ or "").split()),
        "kills": kills,
        "states": found.states,
        "schedules": found.runs,
        "steps": found.steps,
        "deepest": found.deepest,
        "is_complete": found.is_complete,
        "seconds": round(found.seconds, 1),
        "violation": found.violation,
    }


def fault_entry(fault: Fault) -> dict[str, Any]:
    """Return how a fault is found by the search that it names."""
    with fault.applied():
        scenario = SCENARIOS[fault.scenario]
        found = search(scenario, fault.kills, STATES_OF_A_FAULT)
    return {
        "name": fault.name,
        "sentence": fault.sentence,
        "fate": "killed" if found.violation else "survived",
        "invariant": found.violation.partition(":")[0],
        "scenario": fault.scenario,
        "kills": fault.kills,
        "states": found.states,
        "seconds": round(found.seconds, 1),
        "path": [" ".join(choice) for choice in found.path],
    }


def is_clean(record: dict[str, Any]) -> bool:
    """Return whether no invariant was violated and every fault was found."""
    violated = any(found["violation"] for found in record["searches"])
    return not violated and all(one["fate"] == "killed" for one in record["faults"])


def main() -> int:
    """Explore, write the record, and return 1 if it is not clean."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--states", type=int, default=200_000, help="of a search")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    record = {**circumstances(), **explore(given.states)}
    given.out.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if is_clean(record) else 1


if __name__ == "__main__":
    sys.exit(main())
