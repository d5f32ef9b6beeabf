"""A message that is lost when it is received gives its place in a queue back."""

import contextlib
import os
import resource
from queue import Empty

import pytest
import sharedtensor
from reference_peer import descriptors
from sharedtensor.multiprocessing import packets

LARGE = 64 << 20
TIMEOUT = 3.0


@pytest.fixture(params=["Queue", "JoinableQueue"])
def queue(request, fork):
    """A queue with one place."""
    made = getattr(fork, request.param)(1)
    yield made
    made.close()
    made.join_thread()


def assert_has_its_place(queue):
    """Assert that the queue has room for one message, and not for two."""
    queue.put(sharedtensor.ones(2), timeout=TIMEOUT)
    assert queue.full()
    assert queue.get(timeout=TIMEOUT).tolist() == [1, 1]
    with pytest.raises(Empty):
        queue.get_nowait()


@contextlib.contextmanager
def little_address_space(spare):
    """Leave this process so many bytes of address space."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + spare, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize("timeout", [None, TIMEOUT])
def test_message_for_which_there_is_no_address_space(queue, timeout):
    """Clauses FAIL-7, FAIL-8."""
    queue.put(bytes(LARGE))
    before = descriptors()
    with little_address_space(LARGE // 2), pytest.raises(MemoryError):
        queue.get(timeout=timeout)
    assert descriptors() == before
    assert_has_its_place(queue)


def test_message_that_is_cut_short(queue, monkeypatch):
    in_a_file = packets.in_a_file

    def cut_short(payload):
        made = in_a_file(payload)
        os.ftruncate(made.fd, 1)
        return made

    with monkeypatch.context() as patch:
        patch.setattr(packets, "in_a_file", cut_short)
        queue.put(bytes(1 << 20))
    with pytest.raises(OSError, match="fewer of them"):
        queue.get()
    assert_has_its_place(queue)


def test_message_at_which_a_signal_handler_raises(queue, monkeypatch):
    """It is a large one: the signal comes while its bytes are read."""

    def interrupted(descriptors, size):
        raise KeyboardInterrupt

    queue.put(bytes(1 << 20))
    with monkeypatch.context() as patch:
        patch.setattr(packets, "content_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            queue.get()
    assert_has_its_place(queue)


def test_wait_at_which_a_signal_handler_raises(queue, monkeypatch):
    """No message was taken, so there is no place to give back."""

    def interrupted(end, wait, taken):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(packets, "_receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            queue.get()
    assert_has_its_place(queue)


def test_message_that_cannot_be_rebuilt(queue):
    queue.put(Unbuilt())
    with pytest.raises(ArithmeticError):
        queue.get()
    assert_has_its_place(queue)


class Unbuilt:
    def __reduce__(self):
        return _raise, ()


def _raise():
    raise ArithmeticError
