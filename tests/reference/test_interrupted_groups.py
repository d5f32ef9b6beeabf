"""What is left of a group of processes where a signal handler raises in its parent.

The failure of one of them is not forgotten. Clause SPAWN-3.
"""

import os
import signal
import sys

import pytest
from interrupts import Interrupt
from sharedtensor.errors import ProcessRaisedException
from sharedtensor.multiprocessing import spawning

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
