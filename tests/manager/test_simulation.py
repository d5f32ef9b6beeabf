"""The manager's protocol in virtual time: a sample of what `nox` explores for longer.

Clauses FS-2, LIFE-2, MGR-2, MGR-3, MGR-11, MGR-14: see `simulator/processes.py`.
"""

import contextlib
import json
import re
import sys
from pathlib import Path

import pytest
from sharedtensor.manager import accounting, client, conversation, serving

sys.path.insert(0, str(Path(__file__).with_name("simulator")))
import explore
import runs
import search
from interleavings import follow
from mutants import MUTANTS

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "docs/reports/manager-simulation.json").read_text())
KILLS = {one["name"]: one for one in RECORD["mutants"]}
RUNS = 100
STATES = 150  # of each search


@pytest.mark.parametrize("part", range(3))
def test_random_runs_violate_nothing(part):
    for seed in range(part * RUNS, (part + 1) * RUNS):
        assert runs.run(seed).violation == ""


def test_a_run_is_repeated_by_its_seed():
    assert runs.run(66) == runs.run(66)
    assert runs.run(66) != runs.run(67)


@pytest.mark.parametrize("scenario", search.SCENARIOS.values(), ids=search.SCENARIOS)
@pytest.mark.parametrize("kills", explore.SEARCHES)
def test_interleavings_violate_nothing(scenario, kills):
    found = search.search(scenario, *kills, STATES)
    assert found.violation == "", found.path
    assert found.is_complete or found.states >= STATES


def test_a_search_of_one_client_and_its_manager_is_complete():
    def alone(simulation):
        async def program(client):
            await client.start()
            await client.make("x")
            await client.drop("x")
            await client.exit()

        client = simulation.client("a")
        client.run(program(client))

    found = search.search(alone, 0, 1)
    assert found.is_complete
    assert found.violation == ""


def killed(mutant):
    """Repeat what killed a mutant; return what was violated."""
    how = KILLS[mutant]
    with MUTANTS[mutant].applied() if mutant else contextlib.nullcontext():
        if "seed" in how:
            return runs.run(how["seed"]).violation
        searched = search.RunningScenario(search.SCENARIOS[how["scenario"]])
        return follow(searched, [tuple(choice.split()) for choice in how["path"]])


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_of_the_protocol_is_killed(mutant):
    """As the record says; `nox -s manager_simulation` makes a new one."""
    assert killed(mutant).partition(":")[0] == KILLS[mutant]["invariant"] != ""


def test_the_record_is_of_the_mutants_and_invariants_of_today():
    assert set(KILLS) == set(MUTANTS)
    assert RECORD["invariants"] == explore.invariants()
    assert explore.is_clean(RECORD)
    assert {one["invariant"] for one in RECORD["mutants"]} <= set(RECORD["invariants"])


@pytest.mark.parametrize("module", [accounting, client, conversation, serving])
def test_comments_on_orders_name_mutants_and_invariants_that_there_are(module):
    cited = set(re.findall(r"`(\w+_\w+)`", module.__doc__))
    assert cited & (set(MUTANTS) | set(RECORD["invariants"]))
    assert cited <= set(MUTANTS) | set(RECORD["invariants"]) | set(dir(module))


# What the simulator has found in the protocol, and what the protocol does now.


@pytest.mark.parametrize(
    "as_it_was",
    [
        "nobody_is_present",
        "aborted_starts_remove_everything",
        "rewrites_the_journal_first",
    ],
)
def test_what_was_wrong_once_is_not_any_more(as_it_was):
    """The mutant is the protocol as it was; it and this one run with one seed."""
    assert killed(as_it_was) != ""
    assert runs.run(KILLS[as_it_was]["seed"]).violation == ""


def test_the_record_says_when_and_on_what_it_was_made(tmp_path, monkeypatch):
    file, found = tmp_path / "record.json", {"explored": True}
    monkeypatch.setattr(explore, "explore", lambda *_: found)
    monkeypatch.setattr(explore, "is_clean", lambda record: record["explored"])
    monkeypatch.setattr(sys, "argv", ["it", "--minutes=1", f"--out={file}"])
    assert explore.main() == 0
    record = json.loads(file.read_text())
    assert record["explored"]
    assert {"started", "version", "commit", "python", "cpus"} <= set(record)
