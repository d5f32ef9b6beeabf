"""All orders of the few steps by which names are held and removed, on real locks.

A name that a process or a message has is never removed, and at last one that nobody
has. The search has to find each way to break the code.
"""

import inspect

import pytest
from interleavings import search
from name_steps import NameMachine, keeps, receives, receives_carelessly, shares, sweeps
from sharedtensor import segments
from sharedtensor.names import keeper, program

MOST_STATES = 100_000
PAIR = {"sender": shares, "receiver": receives}
SCENARIOS = {
    "made": ({"maker": keeps, "keeper": sweeps, "other": sweeps}, ()),
    "killed": ({"maker": keeps, "keeper": sweeps}, ("maker", "keeper")),
    "sent": (PAIR, ("sender", "receiver")),
    "swept": (PAIR | {"keeper": sweeps}, ()),
    "careless": (PAIR | {"receiver": receives_carelessly, "keeper": sweeps}, ()),
}


def found_in(scenario, directory):
    def start():
        return NameMachine(directory, *SCENARIOS[scenario])

    return search(start, scenario, MOST_STATES)


@pytest.mark.takes(15)
@pytest.mark.parametrize("scenario", [one for one in SCENARIOS if one != "careless"])
def test_no_order_of_the_steps_and_no_kill_breaks_it(scenario, tmp_path):
    found = found_in(scenario, tmp_path)
    assert found.violation == "", found.path
    assert found.is_complete
    assert found.states > 300


FAULTS = {
    "swept: no second look at the byte": (
        *(keeper.is_unlinked, "if is_locked(locks, byte_of(name)):", "if False:"),
        "the name is gone that",
    ),
    "made: the maker does not look whether its name is there": (
        *(segments.is_held, "st_nlink > 0", "st_nlink >= 0"),
        "the name is gone that ['maker']",
    ),
    "made: a keeper does not look whether the file has its name": (
        *(keeper.is_unlinked, "status.st_nlink and ", ""),
        "the name is gone that ['maker']",
    ),
    "made: no exclusive lock": (
        *(keeper.is_unlinked, "fcntl.LOCK_EX", "fcntl.LOCK_SH"),
        "the name is gone that ['maker']",
    ),
    "made: no shared lock": (
        *(
            segments.is_held,
            "lock_file(owned.fd, fcntl.LOCK_SH, TIMEOUT, doing)",
            "pass",
        ),
        "the name is gone that ['maker']",
    ),
    "swept: no lock of a byte": (
        *(
            program.in_flight,
            "keeper.lock_byte(locks.fd, keeper.byte_of(name))",
            "pass",
        ),
        "the name is gone that ['channel']",
    ),
    "killed: nothing is removed": (
        *(keeper.is_unlinked, "os.unlink(name, dir_fd=locks)", "pass"),
        "the name is left that nobody has",
    ),
    "sent: who drops a name does not remove it": (
        *(program.remove_unless_held, "_remove(name, locks.fd)", "pass"),
        "the name was left by who dropped it last",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found(fault, tmp_path, monkeypatch):
    function, right, wrong, said = FAULTS[fault]
    source = inspect.getsource(function)
    assert right in source
    made, module = {}, inspect.getmodule(function)
    exec(source.replace(right, wrong), vars(module), made)
    monkeypatch.setattr(module, function.__name__, made[function.__name__])
    assert said in found_in(fault.partition(":")[0], tmp_path).violation


def test_receiver_that_closes_the_message_too_early_is_found(tmp_path):
    assert "HandleError" in found_in("careless", tmp_path).violation
