"""What no case of the suite can bring about: parts that are refused, or never come."""

import contextlib
import errno
import fcntl
import os
import resource
import socket
from queue import Empty

import pytest
import sharedtensor
import sharedtensor.multiprocessing as mp
from holdings import descriptors, eventually, limit_for
from interrupts import in_a_child
from sharedtensor import protocol, segments
from sharedtensor.descriptors import ReceivedDescriptors
from sharedtensor.multiprocessing import packets


def test_receiving_without_proc_says_what_to_do(monkeypatch):
    def absent(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    ours, theirs = mp.Pipe()
    ours.send(sharedtensor.ones(3))
    with monkeypatch.context() as patch:
        patch.setattr("sharedtensor.segments.os.readlink", absent)
        with pytest.raises(sharedtensor.HandleError, match="Mount /proc"):
            theirs.recv()
    ours.send(sharedtensor.ones(3))
    assert theirs.recv().tolist() == [1.0, 1.0, 1.0]


def test_segment_is_sealed_and_an_unsealed_one_is_refused(monkeypatch):
    sealed = sharedtensor.zeros(3).share_memory_().storage.segment
    with pytest.raises(PermissionError):
        os.ftruncate(sealed.fd, 0)
    assert fcntl.fcntl(sealed.fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    monkeypatch.setattr(segments, "seal", lambda fd, nbytes: None)
    made = sharedtensor.arange(3).share_memory_().storage.segment.resource
    with pytest.raises(sharedtensor.HandleError, match="shrunk"):
        segments.verify_unnamed(made.fd, made.token, made.nbytes, made.inode)


def test_message_unpickled_without_its_descriptors_is_a_handle_error():
    ours, theirs = mp.Pipe()
    before = descriptors()
    ours.send(sharedtensor.zeros(1))
    content = theirs.recv_bytes()
    with pytest.raises(sharedtensor.HandleError, match="descriptor"):
        protocol.unpack_message(content, ReceivedDescriptors())
    assert descriptors() == before


def test_more_descriptors_than_a_batch_takes_are_refused_and_not_waited_for():
    with open(os.devnull) as file:
        numbers = [file.fileno()] * 100_000
        before = descriptors()
        with pytest.raises(sharedtensor.ResourceError, match="send fewer tensors"):
            packets.batch_of(numbers)
        with pytest.raises(sharedtensor.ResourceError, match="send fewer tensors"):
            packets.verify_sendable(b"", len(numbers))
        assert descriptors() == before


@in_a_child
def test_what_a_queue_has_accepted_waits_until_less_is_in_flight(fork):
    """A limit of a user without privileges, unix(7): so a child gives up its own."""
    queue = fork.Queue()
    queue.put(sharedtensor.zeros(1))
    queue.get()  # all is imported that a child without privileges needs
    if os.geteuid() == 0:
        os.setuid(1_000_000 + os.getpid())  # nobody else's: the limit is that of a user
    queue.cancel_join_thread()  # where this fails, the process ends nevertheless
    before = 3000  # messages of a kilobyte: more than a pipe takes
    for _ in range(before):
        queue.put(bytes(1000))
    queue.put(sharedtensor.ones(2))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit_for(16), hard))
    ours, theirs = socket.socketpair()
    many = [ours.fileno()] * 100  # few messages, so that the buffer takes them all
    with contextlib.suppress(OSError):
        while True:
            socket.send_fds(ours, [b"+"], many)
    with pytest.raises(OSError, match="Too many references"):
        socket.send_fds(ours, [b"+"], many)
    empty = mp.Queue()
    empty.put(sharedtensor.ones(3))  # nothing waits there, and it is accepted as well
    for _ in range(before):
        queue.get(timeout=30)
    with pytest.raises(Empty):
        queue.get(timeout=0.5)
    ours.close()
    theirs.close()  # what was in flight goes with it
    assert queue.get(timeout=30).tolist() == [1, 1]
    assert empty.get(timeout=30).tolist() == [1, 1, 1]


@pytest.mark.parametrize(("count", "most"), [(1, 64), (20, 160)])
def test_a_queue_has_few_descriptors_in_flight_whatever_waits(count, most):
    queue = mp.Queue()
    queue.cancel_join_thread()  # where this fails, the process ends nevertheless
    tensors = [sharedtensor.zeros(1).share_memory_() for _ in range(count)]
    for _ in range(200):
        queue.put(tensors)
    eventually(lambda: len(queue._buffer) < 200)
    in_flight = (200 - len(queue._buffer)) * count
    assert count <= in_flight <= most
    for _ in range(200):
        assert len(queue.get(timeout=30)) == count
