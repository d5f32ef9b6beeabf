"""What an interrupted call leaves of a message, wherever the exception arises.

No descriptor, no name, no place of a queue and no lock is lost, and a message is in the
channel or not. Clause FAULT-2.
"""

import functools
import os
import threading
from queue import Empty

import pytest
import sharedtensor
import sharedtensor.multiprocessing as mp
from holdings import eventually, own_names
from interrupts import Interrupt
from sharedtensor import protocol, transport
from sharedtensor.descriptors import OwnedDescriptor
from sharedtensor.multiprocessing import packets, queues
from test_interrupts import be_interrupted, in_a_child

TIMEOUT = 3.0
VALUES = [0, 1, 2, 3]
LARGE = bytes(packets.LARGEST_PACKET + 1)


def message_interrupted(*beside):
    """Send shared tensors to this process again and again, and interrupt that."""
    ours, theirs = mp.Pipe()
    shared = []

    def send_and_receive():
        ours.send((shared.pop(), *beside))
        return theirs.recv()[0].tolist()

    def receive_what_is_left():
        while theirs.poll():
            assert theirs.recv()[0].tolist() == VALUES
        while len(shared) < 2:
            shared.append(sharedtensor.arange(4).share_memory_())

    receive_what_is_left()
    be_interrupted(send_and_receive, receive_what_is_left, 0)


@pytest.mark.parametrize("strategy", ["file_descriptor"], indirect=True)
@pytest.mark.parametrize("beside", [(), (LARGE,)], ids=["small", "large"])
def test_a_message_loses_no_descriptor(strategy, fork, beside):
    in_a_child(fork, message_interrupted, *beside)


def names_interrupted():
    """Receive names whose tensors have gone, and interrupt that."""
    ours, theirs = mp.Pipe()

    def send_another():
        for _ in range(2):
            ours.send(sharedtensor.arange(4))

    def receive():
        payload, received = theirs.receive()
        received.close()
        return payload

    def receive_all():
        while theirs.poll():
            receive()
        eventually(lambda: not own_names())
        send_another()

    send_another()
    be_interrupted(receive, receive_all, 0)


@pytest.mark.parametrize("strategy", ["file_system"], indirect=True)
def test_a_message_keeps_no_name(strategy, fork):
    in_a_child(fork, names_interrupted)


def connection_interrupted():
    """Make a pipe, and send one of its ends to this process."""
    ours, theirs = mp.Pipe()

    def send_one():
        ours.send(mp.Pipe()[0])
        theirs.recv().fileno()

    def receive_what_is_left():
        while theirs.poll():
            theirs.recv().fileno()

    be_interrupted(send_one, receive_what_is_left, 0)


def test_a_pipe_that_is_made_and_sent_loses_no_end(fork):
    in_a_child(fork, connection_interrupted)


def packet_interrupted(count):
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

    be_interrupted(write_and_read, read_what_is_left, 0)


@pytest.mark.parametrize("count", [2, packets.FDS_AT_ONCE + 1], ids=["few", "batch"])
def test_a_packet_loses_no_descriptor(fork, count):
    in_a_child(fork, packet_interrupted, count)


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
    if isinstance(queue, queues.JoinableQueue):
        assert not queue._cond._lock._semlock._is_mine(), "a lock is left taken"


def queue_interrupted(fork, kind, at_once):
    """Put a tensor on a queue with one place, and get it, and interrupt that."""
    queue = getattr(fork, kind)(1)
    sent = sharedtensor.arange(4)
    if not at_once:  # as where the pipe is full: a thread writes it
        protocol.write_at_once = lambda message, channel: False

    def put_and_get():
        queue.put(sent)
        assert queue.get().tolist() == VALUES

    def settle():
        assert_nothing_is_locked(queue)
        if queue.full():  # a message has the place, so it arrives
            assert queue.get(timeout=TIMEOUT).tolist() == VALUES
        assert_has_its_place(queue)

    be_interrupted(put_and_get, settle, 0)


@pytest.mark.parametrize("at_once", [True, False], ids=["at-once", "by-a-thread"])
@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue"])
def test_a_queue_loses_no_place_and_no_lock(fork, kind, at_once):
    in_a_child(fork, queue_interrupted, fork, kind, at_once)


def running_threads():
    """Count threads, without those that Python left in the middle of their start."""
    return sum(each.is_alive() for each in threading.enumerate())


def first_put_interrupted(fork):
    """Let a thread write the first message of a queue, and interrupt that."""
    protocol.write_at_once = lambda message, channel: False
    queue = fork.Queue()

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
        queue = fork.Queue()

    be_interrupted(put, goes_on, 0)


def test_a_queue_goes_on_when_the_start_of_its_thread_was_interrupted(fork):
    in_a_child(fork, first_put_interrupted, fork)


def tasks_interrupted(fork):
    """Put on a joinable queue, and interrupt that."""
    queue = fork.JoinableQueue()

    def get_what_is_there():
        while not queue.empty():
            queue.get()
            queue.task_done()  # it raises if the message was not counted
        assert queue._unfinished_tasks.get_value() == 0

    be_interrupted(lambda: queue.put(1), get_what_is_there, 0)


def test_a_joinable_queue_counts_what_arrives_and_nothing_else(fork):
    in_a_child(fork, tasks_interrupted, fork)


def locks_interrupted(fork):
    """Use what of the queues is the standard library's and takes their locks."""
    queue = fork.JoinableQueue()
    queue.put(1)

    def do_tasks():
        for _ in range(2):
            queue._unfinished_tasks.release()
            queue.task_done()
            with queue._notempty:
                queue._notempty.notify()

    def settle():
        assert_nothing_is_locked(queue)
        while queue._unfinished_tasks.get_value() > 1:
            queue._unfinished_tasks.acquire()

    be_interrupted(do_tasks, settle, 0)


def test_no_lock_of_a_queue_stays_taken(fork):
    in_a_child(fork, locks_interrupted, fork)


class Undone:
    """It notes each message with it that is not sent, as its sender learns it."""

    def __init__(self, noted):
        self.noted = noted

    def __reduce__(self):
        transport.undo_unless_sent(functools.partial(self.noted.append, True))
        return int, ()


def undo_interrupted():
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

    be_interrupted(lambda: ours.send(sent), none_is_both, 0)
    assert is_sent > 2


def test_what_is_in_flight_is_not_undone(fork):
    in_a_child(fork, undo_interrupted)


# Messages that are lost when they are received


@pytest.fixture(params=["Queue", "JoinableQueue"])
def queue(request, fork):
    """A queue with one place."""
    made = getattr(fork, request.param)(1)
    yield made
    made.close()
    made.join_thread()


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
