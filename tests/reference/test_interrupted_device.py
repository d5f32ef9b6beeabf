"""What an exception of a signal handler leaves of device memory that is being sent.

Clauses CUDA-4, CUDA-27 and FAULT-2.
"""

import fcntl
import gc
import os
import sys

import pytest
from interrupts import interrupted_at
from sharedtensor import cuda, protocol
from sharedtensor.cuda import counts, shared_file
from sharedtensor.cuda.devices import device_state

DEVICE = "sim:0"
MOST_CALLS = 2000


@pytest.fixture
def tensor(monkeypatch):
    """A tensor that was sent once: the first send takes more calls."""
    monkeypatch.setattr(sys, "unraisablehook", lambda error: None)
    cuda.use_simulated_device()
    made = cuda.tensor([1, 2, 3], device=DEVICE)
    pack_and_withdraw(made)
    yield made
    cuda.synchronize(DEVICE)


def pack_and_withdraw(tensor):
    """Send a tensor in a message that is not written after all."""
    protocol.withdraw_message(protocol.pack_message(tensor))


@pytest.fixture
def locks(tensor):
    """Descriptors by which the locks of all files can be asked for as by others."""
    state = device_state(DEVICE)
    files = state.own_table.file, state.driver._memory.file
    opened = [os.open(file.address.path, os.O_RDWR) for file in files]
    yield opened
    for fd in opened:
        os.close(fd)


def assert_is_free(fd):
    """Nobody has the lock of a file."""
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(fd, fcntl.LOCK_UN)


def test_an_interrupted_send_counts_no_more_and_keeps_no_lock(tensor, locks):
    state = device_state(DEVICE)
    for place in range(1, MOST_CALLS):
        has_come = interrupted_at(place, lambda: pack_and_withdraw(tensor))
        gc.collect()
        for fd in locks:
            assert_is_free(fd)
        assert not state.lock.is_owned(), place
        assert tensor.tolist() == [1, 2, 3]  # and what finalizers had to leave is done
        states = state.own_table.slots["state"]
        assert (states == counts.VACANT).all(), place
        if not has_come:
            break
    assert not has_come


def test_a_lock_that_another_process_keeps_is_waited_for_and_then_refused(
    tensor, locks, monkeypatch
):
    monkeypatch.setattr(shared_file, "TIMEOUT", 0.01)
    fcntl.flock(locks[0], fcntl.LOCK_EX)
    with pytest.raises(cuda.DeviceError, match="kept the lock"):
        pack_and_withdraw(tensor)
    fcntl.flock(locks[0], fcntl.LOCK_UN)
    pack_and_withdraw(tensor)
    for fd in locks:
        assert_is_free(fd)
