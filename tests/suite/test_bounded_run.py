"""A command that is run for a limited time leaves no process of its group.

Each command here inherits the end of a pipe, which all that it starts inherit, too: who
reads the other end sees an end of file when none of them is left.
"""

from __future__ import annotations

import os
import select
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from sharedtensor_conformance import bounded_run
from sharedtensor_conformance.bounded_run import Result, Runs
from sharedtensor_conformance.harness.kernel import process_tree

LIMIT, GRACE = 2.0, 0.5
BOUND = 30.0
"""Seconds in which everything that was killed has gone."""

PRINTS = "(echo >/dev/fd/WITNESS; exec sleep 600) &"
"""A job in the background: it ignores SIGINT, and says on the pipe that it does.

It could print, so the output has no end while it is there.
"""

STAYS = PRINTS.replace("&", ">/dev/null 2>&1 &")
"""One that prints nowhere."""


SAYS_ITS_NUMBER = "echo $$ >/dev/fd/WITNESS; exec sleep 600"


class Witness:
    """A pipe whose one end the commands hold."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def run(self, script: str, runs: Runs, limit: float) -> Result:
        """Run a script of the shell with this pipe."""
        command = ["sh", "-c", script.replace("WITNESS", str(self.writer))]
        return runs.run(command, limit, pass_fds=(self.writer,))

    def read(self) -> bytes | None:
        """Return what a job has written, nothing at the end, None if nothing comes."""
        ready, _, _ = select.select([self.reader], [], [], BOUND)
        return os.read(self.reader, 1) if ready else None

    def close_writer(self) -> None:
        """Let go of the own end, once."""
        if self.writer >= 0:
            os.close(self.writer)
        self.writer = -1


@pytest.fixture
def witness():
    made = Witness()
    yield made
    made.close_writer()
    os.close(made.reader)


def assert_nothing_is_left(witness: Witness) -> None:
    witness.close_writer()
    while (said := witness.read()) == b"\n":
        pass
    assert said == b""


@pytest.fixture
def run(witness):
    return lambda script, limit=LIMIT: witness.run(script, Runs(GRACE), limit)


@pytest.mark.parametrize("job", [STAYS, PRINTS], ids=["stays", "prints"])
def test_job_that_ignores_the_interrupt_does_not_outlive_its_command(run, witness, job):
    assert run(f"{job} wait").status is None
    assert_nothing_is_left(witness)


def test_command_that_ended_before_its_job_has_its_status_and_output(run, witness):
    assert run(f"{PRINTS} echo done; exit 3") == Result(3, "done\n")
    assert_nothing_is_left(witness)


def test_command_that_a_signal_ended_before_its_job_has_its_status(run, witness):
    assert run(f"{PRINTS} kill -9 $$") == Result(-signal.SIGKILL, "")
    assert_nothing_is_left(witness)


def test_job_does_not_outlive_a_command_that_ended_in_time(run, witness):
    assert run(f"{STAYS} echo done", BOUND) == Result(0, "done\n")
    assert_nothing_is_left(witness)


def test_command_that_was_ended_has_printed_what_it_printed(run, witness):
    result = run("while :; do echo again; sleep 0.01; done")
    assert result.status is None
    assert set(result.output.splitlines()) == {"again"}
    assert_nothing_is_left(witness)


def test_job_does_not_outlive_a_run_that_raises(monkeypatch, witness):
    def interrupted(*ignored: object) -> bool:
        raise KeyboardInterrupt

    runs = Runs(GRACE)
    monkeypatch.setattr(bounded_run.select, "poll", interrupted)
    with pytest.raises(KeyboardInterrupt):
        witness.run(f"{PRINTS} wait", runs, LIMIT)
    monkeypatch.undo()
    assert_nothing_is_left(witness)


@pytest.mark.parametrize("job", [STAYS, PRINTS], ids=["stays", "prints"])
@pytest.mark.parametrize("then", ["wait", "exit"])
def test_job_does_not_outlive_the_end_of_all(witness, job, then):
    runs = Runs(GRACE)
    script = f"{job} {PRINTS} {then}"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(witness.run, script, runs, 2 * BOUND)
        started = witness.read(), witness.read()
        runs.end_all()
        running.result(2 * BOUND)
    assert started == (b"\n", b"\n")
    assert_nothing_is_left(witness)
    with pytest.raises(InterruptedError):
        runs.run(["true"], LIMIT)


def test_end_of_all_does_not_wait_for_a_job_that_has_left_the_group(witness):
    runs = Runs(GRACE)
    script = f"trap '' INT; (exec setsid sh -c '{SAYS_ITS_NUMBER}') & wait"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(witness.run, script, runs, 4 * BOUND)
        job = int(os.read(witness.reader, 20))
        try:
            runs.end_all()
            assert running.result(BOUND).status == -signal.SIGKILL
        finally:
            os.kill(job, signal.SIGKILL)
    assert_nothing_is_left(witness)


@pytest.mark.parametrize(
    "script", ["exit", PRINTS, f"{STAYS} wait"], ids=["alone", "prints", "stays"]
)
def test_no_signal_is_sent_to_a_number_that_others_may_have(
    run, witness, monkeypatch, script
):
    """Nobody gets the number of a group whose first process was not waited for."""
    send = os.killpg
    states = []

    def noted(group: int, number: int) -> None:
        states.append(process_state(group))
        send(group, number)

    monkeypatch.setattr(bounded_run.os, "killpg", noted)
    run(script)
    assert states
    assert "none" not in states
    assert_nothing_is_left(witness)


def process_state(pid: int) -> str:
    """Return the letter of the state of a process; there may be no such process."""
    with suppress(OSError):
        return process_tree.stat(pid)[0]
    return "none"
