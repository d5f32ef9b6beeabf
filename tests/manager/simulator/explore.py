"""Explore the manager's protocol: random runs, all searches, all mutants.

    python tests/manager/simulator/explore.py --minutes=5 --out=FILE

The results are written to a record. It says how each mutant is killed: by the seed of a
run, or by a path of a search. The tests repeat only that. So a change of the simulator
may need a new record.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[3] / "soak"))

import processes
import runs
import search
from circumstances import circumstances
from interleavings import invariants_of
from mutants import MUTANTS, Mutant

FIRST_SEED = 0
MUTANT_RUNS = 20_000
SEARCHES = ((0, 0), (0, 1), (1, 0))  # kills of managers, and of clients


def explore(minutes: float, most_states: int) -> dict[str, Any]:
    """Return the whole record. A search stops at `most_states` states."""
    return {
        "invariants": invariants(),
        "runs": random_runs(minutes * 60),
        "searches": [
            search_entry(name, kills, most_states)
            for name in search.SCENARIOS
            for kills in SEARCHES
        ],
        "mutants": [mutant_entry(mutant) for mutant in MUTANTS.values()],
    }


def invariants() -> dict[str, str]:
    """Return the text of each invariant from the docstring of `processes`, by name."""
    return invariants_of(processes)


def random_runs(seconds: float) -> dict[str, Any]:
    """Run one seed after another for so many seconds; return counts and violations."""
    began = time.perf_counter()
    count = steps = 0
    violations = []
    while time.perf_counter() - began < seconds:
        outcome = runs.run(FIRST_SEED + count)
        count += 1
        steps += outcome.steps
        if outcome.violation:
            violations.append(vars(outcome))
    taken = time.perf_counter() - began
    return {
        "first_seed": FIRST_SEED,
        "runs": count,
        "steps": steps,
        "seconds": round(taken, 1),
        "steps_per_minute": round(60 * steps / taken),
        "violations": violations,
    }


def search_entry(name: str, kills: tuple[int, int], most_states: int) -> dict[str, Any]:
    """Search one scenario, with at most these kills of managers and of clients."""
    scenario = search.SCENARIOS[name]
    found = search.search(scenario, *kills, most_states)
    return {
        "scenario": name,
        "sentence": " ".join((scenario.__doc__ or "").split()),
        "manager_kills": kills[0],
        "client_kills": kills[1],
        "states": found.states,
        "steps": found.steps,
        "deepest": found.deepest,
        "is_complete": found.is_complete,
        "seconds": round(found.seconds, 1),
        "violation": found.violation,
    }


def mutant_entry(mutant: Mutant) -> dict[str, Any]:
    """Return how a mutant is killed: by the search that it names, or by random runs."""
    began = time.perf_counter()
    steps = 0
    with mutant.applied():
        if mutant.scenario:
            scenario = search.SCENARIOS[mutant.scenario]
            kills = mutant.manager_kills, mutant.client_kills
            found = search.search(scenario, *kills)
            path = [" ".join(choice) for choice in found.path]
            by = {"scenario": mutant.scenario, "path": path}
            return entry_of(mutant, began, found.steps, found.violation, by)
        for seed in range(MUTANT_RUNS):
            outcome = runs.run(seed)
            steps += outcome.steps
            if outcome.violation:
                return entry_of(mutant, began, steps, outcome.violation, {"seed": seed})
    return entry_of(mutant, began, steps, "", {})


def entry_of(
    mutant: Mutant, began: float, steps: int, violation: str, by: dict[str, Any]
) -> dict[str, Any]:
    """Return the entry of a mutant in the record."""
    return {
        "name": mutant.name,
        "sentence": mutant.sentence,
        "fate": "killed" if violation else "survived",
        "invariant": violation.partition(":")[0],
        "steps": steps,
        "seconds": round(time.perf_counter() - began, 2),
        **by,
    }


def is_clean(record: dict[str, Any]) -> bool:
    """Return whether no invariant was violated and every mutant was killed."""
    violated = record["runs"]["violations"] or any(
        found["violation"] for found in record["searches"]
    )
    return not violated and all(one["fate"] == "killed" for one in record["mutants"])


def main() -> int:
    """Explore, write the record, and return 1 if it is not clean."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5, help="of random runs")
    parser.add_argument("--states", type=int, default=400_000, help="of a search")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    record = {**circumstances(), **explore(given.minutes, given.states)}
    given.out.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if is_clean(record) else 1


if __name__ == "__main__":
    sys.exit(main())
