"""What is left of a group of processes where a signal handler raises in its parent.

The failure of one of them is not forgotten, and none runs that nobody knows. Clauses
SPAWN-3, SPAWN-7.
"""

import os
import signal
import sys
from contextlib import suppress
from multiprocessing import util

import pytest
from holdings import eventually
from interrupts import Interrupt
from sharedtensor.errors import ProcessRaisedException
from sharedtensor.multiprocessing import spawning
from sharedtensor_conformance.harness import process_tree
from test_interrupts import each_place, in_a_child

TIMEOUT = 30.0


@pytest.fixture
def interruptible():
    """SIGUSR1 raises `Interrupt` in this process."""

    def interrupt(number, frame):
        raise Interrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


def interrupt_parent():
    os.kill(os.getppid(), signal.SIGUSR1)


def interrupt_parent_last():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    interrupt_parent()


def wait(index):
    while True:
        signal.pause()


def never(index):
    raise AssertionError("it is called")


def fail_or_interrupt_parent(index, is_ready, is_released):
    """The first one fails, the other interrupts its parent when it is to end."""

    def end(number, frame):
        interrupt_parent_last()
        is_released.wait(TIMEOUT)
        sys.exit()

    if index == 0:
        assert is_ready.wait(TIMEOUT)
        raise ValueError("its words")
    signal.signal(signal.SIGTERM, end)
    is_ready.set()
    wait(index)


def interrupt_parent_twice(index, pids):
    """It interrupts its parent when it runs, and when it is to end; it goes on."""
    signal.signal(signal.SIGTERM, lambda *ignored: interrupt_parent_last())
    pids.put(os.getpid())
    interrupt_parent()
    wait(index)


def test_failure_is_told_after_a_join_that_was_interrupted(fork, interruptible):
    events = fork.Event(), fork.Event()
    context = spawning.start_processes(
        fail_or_interrupt_parent, events, nprocs=2, join=False, start_method="fork"
    )
    with pytest.raises(Interrupt):
        context.join()
    events[1].set()
    for _ in range(2):
        with pytest.raises(ProcessRaisedException, match="its words"):
            context.join()
        assert not any(process.is_alive() for process in context.processes)


def test_processes_are_killed_where_their_end_is_interrupted_again(fork, interruptible):
    pids = fork.SimpleQueue()
    with pytest.raises(Interrupt):
        spawning.start_processes(interrupt_parent_twice, (pids,), start_method="fork")
    pid = pids.get()
    has_ended = process_tree.has_ended(pid)
    if not has_ended:
        os.kill(pid, signal.SIGKILL)
    assert has_ended


def start_interrupted():
    """Start two processes again and again, and interrupt that; none is left.

    What joins and ends them is not interrupted by itself.
    """

    def join(started):
        sys.setprofile(None)
        raise Interrupt

    def start():
        with suppress(Interrupt):
            spawning.start_processes(wait, (), 2, daemon=True, start_method="fork")

    spawning.ProcessContext.join = join
    os.register_at_fork(after_in_child=lambda: sys.setprofile(None))
    places = 0
    for place in each_place(start):
        assert process_tree.children(os.getpid()) == []
        places = place
    assert places > 100


def test_start_that_is_interrupted_leaves_no_process(fork):
    in_a_child(fork, start_interrupted)


def spawn_interrupted():
    """Interrupt the spawning of a process before it gets its arguments."""
    spawnv, spawned = util.spawnv_passfds, []

    def interrupted(*arguments):
        spawned.append(spawnv(*arguments))
        raise Interrupt

    util.spawnv_passfds = interrupted
    with pytest.raises(Interrupt) as caught:
        spawning.start_processes(wait, start_method="spawn")
    (pid,) = spawned
    eventually(lambda: process_tree.has_ended(pid))
    del caught


def test_spawning_that_is_interrupted_leaves_no_process(fork):
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()
    in_a_child(fork, spawn_interrupted)


def test_process_that_its_parent_does_not_know_does_not_begin(fork):
    ours, theirs = fork.Pipe()
    ours.send(False)
    spawning._begin(None, never, 0, (), theirs)
    assert ours.recv() == os.getpid()


def test_process_whose_parent_has_ended_before_it_begins_does_not_begin(fork):
    ours, theirs = fork.Pipe()
    ours.close()
    spawning._begin(None, never, 0, (), theirs)
