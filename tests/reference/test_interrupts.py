"""What an exception of a signal handler leaves, wherever it arises. Clause FAULT-2.

No descriptor, no name, no place of a queue and no lock is lost, and a message is in the
channel or not. Clauses THREAD-6 and THREAD-7 judge more of this for shares, sends and
drops.
"""

import functools
import os
import threading
from collections import deque
from contextlib import suppress
from queue import Empty

import pytest
import sharedtensor
import sharedtensor.multiprocessing as mp
from holdings import eventually, own_names
from interrupts import ANYWHERE, Interrupt, be_interrupted, in_a_child
from sharedtensor import announcements, protocol, state, transport
from sharedtensor.descriptors import OwnedDescriptor
from sharedtensor.multiprocessing import packets

TIMEOUT = 3.0
VALUES = [0, 1, 2, 3]
LARGE = bytes(packets.LARGEST_PACKET + 1)


@pytest.mark.parametrize(
    ("strategy", "beside"),
    [("file_descriptor", b""), ("file_descriptor", LARGE), ("file_system", b"")],
    ids=["small", "large", "named"],
    indirect=["strategy"],
)
@in_a_child
def test_a_message_loses_no_descriptor_and_no_name(strategy, beside):
    """Send a tensor, and receive it as another process does; interrupt that."""
    ours, theirs = mp.Pipe()
    shared = []

    def send_and_receive():
        ours.send((shared.pop(), beside))
        state.segments.clear()
        return theirs.recv()[0].tolist()

    def share_another():
        while theirs.poll():
            assert theirs.recv()[0].tolist() == VALUES
        shared.clear()
        eventually(lambda: not own_names())
        shared.extend(sharedtensor.arange(4).share_memory_() for _ in range(2))

    share_another()
    be_interrupted(send_and_receive, share_another)


@in_a_child
def test_a_pipe_that_is_made_and_sent_loses_no_end():
    """Make a pipe, and send one of its ends to this process."""
    ours, theirs = mp.Pipe()

    def send_one():
        ours.send(mp.Pipe()[0])
        theirs.recv().fileno()

    def receive_what_is_left():
        while theirs.poll():
            theirs.recv().fileno()

    be_interrupted(send_one, receive_what_is_left)


@pytest.mark.parametrize("count", [2, packets.FDS_AT_ONCE + 1], ids=["few", "batch"])
@in_a_child
def test_a_packet_loses_no_descriptor(count):
    """Write and read a message with so many descriptors."""
    ours, theirs = mp.Pipe()
    null = OwnedDescriptor.opened_by(os.open, os.devnull, os.O_RDONLY)

    def write_and_read():
        ours.write(LARGE, [null.fd] * count)
        _, received = theirs.receive()
        received.close()

    def read_what_is_left():
        while theirs.poll():
            payload, received = theirs.receive()
            assert (bytes(payload), len(received.places)) == (LARGE, count)
            received.close()

    be_interrupted(write_and_read, read_what_is_left)


def fork_a_child():
    """Fork a child that ends at once, wherever an exception arises in it."""
    parent = os.getpid()
    try:
        os.fork()
    finally:
        if os.getpid() != parent:
            os._exit(0)


@pytest.mark.parametrize("strategy", ["file_system"], indirect=True)
@in_a_child
def test_an_interrupted_fork_leaves_no_lock_and_no_descriptor(strategy):
    """Fork a process that has a name, and interrupt that.

    The first function of Python after a fork is where its signals are handled.
    """
    held = sharedtensor.arange(4).share_memory_()

    def is_ready_again():
        with suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
        assert not state.moving._is_owned()

    be_interrupted(fork_a_child, is_ready_again, ANYWHERE)
    assert held.tolist() == VALUES


# Queues: a joinable one does all that others do


def assert_has_its_place(queue):
    """Assert that the queue has room for one message, and not for two."""
    queue.put(sharedtensor.ones(2), timeout=TIMEOUT)
    assert queue.full()
    assert queue.get(timeout=TIMEOUT).tolist() == [1, 1]
    with pytest.raises(Empty):
        queue.get_nowait()


def assert_nothing_is_locked(queue):
    # The queue's thread may have it for a moment; one that is left is never free.
    assert queue._notempty.acquire(timeout=TIMEOUT), "a lock is left taken"
    queue._notempty.release()
    assert not queue._cond._lock._semlock._is_mine(), "a lock is left taken"


def write_by_threads():
    """Write as where the pipe is full."""
    protocol.write_at_once = lambda message, channel: False


@pytest.mark.parametrize("prepare", [int, write_by_threads], ids=["at-once", "later"])
@in_a_child
def test_a_queue_loses_no_place_and_no_lock(prepare):
    """Put a tensor on a queue with one place, and get it, and interrupt that."""
    prepare()
    queue = mp.JoinableQueue(1)
    sent = sharedtensor.arange(4)

    def put_and_get():
        queue.put(sent)
        assert queue.get().tolist() == VALUES

    def settle():
        assert_nothing_is_locked(queue)
        if queue.full():  # a message has the place, so it arrives
            assert queue.get(timeout=TIMEOUT).tolist() == VALUES
        assert_has_its_place(queue)

    be_interrupted(put_and_get, settle)


def running_threads():
    """Count threads, without those that Python left in the middle of their start."""
    return sum(each.is_alive() for each in threading.enumerate())


@in_a_child
def test_a_queue_goes_on_when_the_start_of_its_thread_was_interrupted():
    """Let a thread write the first message of a queue, and interrupt that."""
    write_by_threads()
    queue = mp.Queue()

    def put():
        try:
            queue.put(1)
        except RuntimeError as error:  # so Python says what was raised in its wait
            assert isinstance(error.__context__, Interrupt)  # noqa: PT017

    def goes_on():
        """What is put now arrives, and the queue's end waits for its only thread."""
        nonlocal queue
        queue.put(2)
        while (got := queue.get(timeout=TIMEOUT)) != 2:
            assert got == 1  # it was interrupted when it had been put
        feeder, join = queue._thread, queue._jointhread
        assert join.still_active()
        queue.close()
        queue.join_thread()
        assert not feeder.is_alive()
        assert queue._reader.closed
        eventually(lambda: running_threads() == 1)
        queue = mp.Queue()

    be_interrupted(put, goes_on)


@in_a_child
def test_a_joinable_queue_counts_what_arrives_and_nothing_else():
    """Put on a joinable queue, and interrupt that."""
    queue = mp.JoinableQueue()

    def get_what_is_there():
        while not queue.empty():
            queue.get()
            queue.task_done()  # it raises if the message was not counted
        assert queue._unfinished_tasks.get_value() == 0

    be_interrupted(lambda: queue.put(1), get_what_is_there)


@in_a_child
def test_no_lock_of_a_queue_stays_taken():
    """Use what of the queues is the standard library's and takes their locks."""
    queue = mp.JoinableQueue()
    queue.put(1)

    def do_tasks():
        for _ in range(2):
            queue._unfinished_tasks.release()
            queue.task_done()
            queue._finalize_close(deque(), queue._notempty)

    def settle():
        assert_nothing_is_locked(queue)
        while queue._unfinished_tasks.get_value() > 1:
            queue._unfinished_tasks.acquire()

    be_interrupted(do_tasks, settle)


class Undone:
    """It notes each message with it that is not sent, as its sender learns it."""

    def __init__(self, noted):
        self.noted = noted

    def __reduce__(self):
        transport.undo_unless_sent(functools.partial(self.noted.append, True))
        return int, ()


@in_a_child
def test_what_is_in_flight_is_not_undone():
    """Send such an object, and interrupt that."""
    ours, theirs = mp.Pipe()
    noted = []
    sent = Undone(noted)
    is_sent = 0

    def none_is_both():
        nonlocal is_sent
        while theirs.poll():
            assert theirs.recv() == 0
            is_sent += 1
            assert not noted
        noted.clear()

    be_interrupted(lambda: ours.send(sent), none_is_both)
    assert is_sent > 2


# A single place


def test_a_message_that_is_cut_short_gives_its_place_back(monkeypatch):
    in_a_file, queue = packets.in_a_file, mp.JoinableQueue(1)

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


def test_a_name_is_found_by_its_own_descriptor_though_another_is_kept_meanwhile(
    monkeypatch,
):
    made = {}

    def in_flight(names):
        if names == ["mine"]:
            announcements.last("others")  # as another thread may
        null = os.devnull, os.O_RDONLY
        made[names[0]] = OwnedDescriptor.opened_by(os.open, *null)
        return made[names[0]]

    monkeypatch.setattr(announcements.program, "in_flight", in_flight)
    assert announcements.descriptor_of(["mine"]) is made["mine"]
    assert announcements.descriptor_of(["mine"]) is made["mine"]
    assert announcements.descriptor_of(["others"]) is made["others"]
    announcements.last.cache_clear()
