"""Cases with many descriptors in flight never meet, whoever runs them."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys

import pytest
from sharedtensor_conformance.harness.case import in_flight
from sharedtensor_conformance.harness.case.outcomes import NotRun
from sharedtensor_conformance.report.verdicts import Need

HOLDING = """
import sys
from sharedtensor_conformance.harness.case import in_flight
in_flight.permitted = lambda: 1024
in_flight.BUDGET = sys.argv[2]
with in_flight.taking(int(sys.argv[1])):
    print("taken", flush=True)
    sys.stdin.read()
"""
"""A program that takes so many descriptors, and has them until its input ends."""

BUDGET = f"sts-in-flight-test-{os.getpid()}"
"""A budget of this process alone: a run of the same user may go on beside it."""


@pytest.fixture
def limit(monkeypatch):
    """The limits are those of an ordinary user, and nobody waits for long."""
    monkeypatch.setattr(in_flight, "permitted", lambda: 1024)
    monkeypatch.setattr(in_flight, "TIMEOUT", 0.2)
    monkeypatch.setattr(in_flight, "BUDGET", BUDGET)


@pytest.fixture
def holder(request):
    """A process that has taken `request.param` descriptors."""
    command = [sys.executable, "-c", HOLDING, str(request.param), BUDGET]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True) as process:
        assert process.stdout.readline() == "taken\n"
        yield process
        process.stdin.close()


@pytest.mark.parametrize("holder", [300], indirect=True)
def test_those_that_would_be_too_many_together_wait(limit, holder, monkeypatch):
    with in_flight.taking(100):  # both fit
        pass
    with pytest.raises(NotRun, match="another run") as raised, in_flight.taking(200):
        pass
    assert raised.value.need is Need.DESCRIPTORS
    monkeypatch.setattr(in_flight, "TIMEOUT", 60.0)
    os.kill(holder.pid, signal.SIGKILL)  # what it had is free, and nothing is left
    with in_flight.taking(512):
        pass


def test_what_the_system_does_not_permit_is_not_run(limit):
    with (
        pytest.raises(NotRun, match="600 descriptors") as raised,
        in_flight.taking(600),
    ):
        pass
    assert raised.value.need is Need.DESCRIPTORS


@pytest.mark.parametrize("holder", [1], indirect=True)
def test_a_process_that_has_a_part_takes_no_more(limit, holder):
    with in_flight.taking(448):  # with the holder's all
        with in_flight.taking(512):
            pass
        with pytest.raises(AssertionError), in_flight.taking(1):
            raise AssertionError
    with pytest.raises(NotRun), in_flight.taking(512):
        pass


def test_large_cases_take_turns_and_others_do_not_wait(limit):
    with in_flight.taking_turns(large=True):
        with in_flight.taking_turns(large=False), in_flight.taking(512):
            pass
        with (
            pytest.raises(NotRun, match=r"another run .* had memory") as raised,
            in_flight.taking_turns(large=True),
        ):
            pass
    assert raised.value.need is Need.MEMORY
    with in_flight.taking_turns(large=True):  # the turn was given back
        pass


def test_the_limit_of_open_files_is_raised_and_restored():
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft // 2, hard))
    try:
        restore = in_flight.raise_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= soft
        restore()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft // 2, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
