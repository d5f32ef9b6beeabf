"""The protocol of device memory in small programs, in every interleaving.

A sample of what `nox -s device_exploration` looks at for longer. Clauses CUDA-4,
CUDA-6, CUDA-9, CUDA-11 to CUDA-18, CUDA-25, CUDA-27, CUDA-34, CUDA-35: see
`explorer/device_world.py`.
"""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).with_name("explorer")))
import explore_device
from device_faults import FAULTS
from device_processes import simulated
from device_programs import SCENARIOS
from explore_device import follow, search, start_scenario

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "docs/reports/device-exploration.json").read_text())
FOUND = {one["name"]: one for one in RECORD["faults"]}
STATES = 150  # of each search


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
@pytest.mark.parametrize("kills", explore_device.KILLS)
def test_interleavings_violate_nothing(scenario, kills):
    found = search(scenario, kills, STATES)
    assert found.violation == "", found.path
    assert found.is_complete or found.states >= STATES


def test_a_search_of_one_process_is_complete():
    def alone(machine):
        def program(me):
            made = me.make(1)
            me.expect(made, 1)
            del made
            me.collect_all()

        machine.start(a=program)

    found = search(alone, kills=1)
    assert found.is_complete
    assert found.violation == ""
    assert found.states > 2 * found.deepest, "a kill at each step"


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_protocol_is_found(name):
    """As the record says; `nox -s device_exploration` makes a new one."""
    fault, found = FAULTS[name], FOUND[name]
    path = [tuple(choice.split()) for choice in found["path"]]
    with fault.applied():
        violated = follow(SCENARIOS[fault.scenario], path)
    assert violated.partition(":")[0] == found["invariant"] != ""


def test_the_record_is_of_the_faults_and_invariants_of_today():
    assert set(FOUND) == set(FAULTS)
    assert RECORD["invariants"] == explore_device.invariants()
    assert explore_device.is_clean(RECORD)
    assert {one["scenario"] for one in RECORD["searches"]} == set(SCENARIOS)
    assert {one["invariant"] for one in RECORD["faults"]} <= set(RECORD["invariants"])


# The machine itself


def killed_after(scenario, steps):
    """Return the machine after so many steps of its first process, killed then."""
    machine = start_scenario(scenario, kills=1)
    for _ in range(steps):
        machine.take(("step", "a"))
    machine.take(("kill", "a"))
    return machine


def test_a_process_that_is_killed_does_nothing_any_more():
    with simulated():
        machine = killed_after(SCENARIOS["one_sends"], 3)
        before = machine.world.key()
        assert machine.world.ended == {"a"}
        assert not machine.world.memory
        assert ("step", "a") not in machine.choices()
        machine.close()
        assert machine.world.key()[0] == before[0]


def test_nobody_who_is_left_waiting_goes_unnoticed():
    def waits_for_ever(machine):
        def program(me):
            me.point("waits for ever", lambda: False)

        machine.start(a=program)

    assert search(waits_for_ever).violation == "nobody_waits: a waits for ever"


def test_an_error_that_a_finalizer_swallows_is_a_violation():
    def fails(machine):
        def program(me):
            made = me.make(1)
            me.state.driver.free = lambda base: 1 / 0
            del made

        machine.start(a=program)

    assert search(fails).violation.startswith("nobody_fails: a at")


def test_an_error_of_a_program_is_a_violation():
    def fails(machine):
        def program(me):
            raise ValueError("no reason")

        machine.start(a=program)

    violation = search(fails).violation
    assert violation == "nobody_fails: a at 'starts': ValueError: no reason"


def test_the_record_says_when_and_on_what_it_was_made(tmp_path, monkeypatch):
    file, found = tmp_path / "record.json", {"explored": True}
    monkeypatch.setattr(explore_device, "explore", lambda *_: found)
    monkeypatch.setattr(explore_device, "is_clean", lambda record: record["explored"])
    monkeypatch.setattr(sys, "argv", ["it", "--states=3", f"--out={file}"])
    assert explore_device.main() == 0
    record = json.loads(file.read_text())
    assert record["explored"]
    assert {"started", "version", "commit", "python", "cpus"} <= set(record)
