"""What an exception of a signal handler leaves of device memory that is being sent.

Clauses CUDA-4, CUDA-27 and FAULT-2.
"""

import fcntl
import functools
import os
import sys

import pytest
from cuda_peers import counts_in_use
from interrupts import each_place
from sharedtensor import cuda, descriptors, protocol
from sharedtensor.cuda import shared_file
from sharedtensor.cuda.devices import device_state

DEVICE = "sim:0"


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
    protocol.pack_message(tensor).clear()


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
    for place in each_place(lambda: pack_and_withdraw(tensor)):
        for fd in locks:
            assert_is_free(fd)
        assert not state.lock.is_owned(), place
        assert tensor.tolist() == [1, 2, 3]  # and what finalizers had to leave is done
        assert counts_in_use() == [], place


def test_an_interrupted_send_of_virtual_memory_keeps_no_descriptor(tensor, locks):
    state, free = device_state(DEVICE), cuda.memory_info(DEVICE)[0]
    made = cuda.carve(cuda.virtual_block(1, 1, device=DEVICE), 0, (3,), "int64")
    made.write(..., [1, 2, 3])
    before = len(os.listdir("/proc/self/fd"))
    for place in each_place(lambda: pack_and_withdraw(made)):
        for fd in locks:
            assert_is_free(fd)
        assert not state.lock.is_owned(), place
        assert made.tolist() == [1, 2, 3]
        descriptors.finish_ended()  # as the next one that is opened does
        assert len(os.listdir("/proc/self/fd")) == before, place
    made.storage = None
    assert cuda.memory_info(DEVICE)[0] == free


def test_an_interrupted_synchronisation_finishes_each_receive_in_the_end(tensor):
    state, done = device_state(DEVICE), []

    def receive():
        done.clear()
        state.after_waits.extend(functools.partial(finish, each) for each in range(4))

    def finish(receive):  # a step of Python, as each of them has
        done.append(receive)

    for place in each_place(lambda: cuda.synchronize(DEVICE), prepare=receive):
        cuda.synchronize(DEVICE)
        assert set(done) == set(range(4)), place
        assert len(done) <= 5, place
        assert not state.after_waits, place
    assert done == [0, 1, 2, 3]


def test_an_interrupted_look_at_the_events_forgets_none_that_is_in_use(tensor):
    state = device_state(DEVICE)
    events = state.driver._events
    sent = protocol.pack_message(tensor)
    cuda.protocol.retire_events(state)
    [used] = state.sent_events
    before = set(events)

    def send():
        for _ in range(4):
            pack_and_withdraw(tensor)
        state.sent_events.append(state.sent_events.pop(0))  # the used one comes last

    retire = functools.partial(cuda.protocol.retire_events, state)
    for place in each_place(retire, prepare=send):
        cuda.protocol.retire_events(state)
        assert state.sent_events == [used], place
        lost = set(events) - before
        assert len(lost) <= 1, place  # the one that was being destroyed
        for event in lost:
            state.driver.event_destroy(event)
    sent.clear()


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
