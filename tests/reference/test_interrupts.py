"""What an exception of a signal handler leaves, wherever it arises. Clause FAULT-2."""

import functools
import gc
import os
import sys
from contextlib import suppress

import pytest
import sharedtensor
import sharedtensor.multiprocessing as mp
from interrupts import BEGINNING, COMING_BACK, Interrupt, interrupted_at
from reference_peer import descriptors, eventually
from sharedtensor import announcements, segments
from sharedtensor.descriptors import OwnedDescriptor
from sharedtensor.errors import ManagerError
from sharedtensor.manager import client, messages

MOST_CALLS = 2000
BY_NAME = pytest.mark.parametrize("strategy", ["file_system"], indirect=True)


def each_place(work, places=COMING_BACK):
    """Interrupt `work` where each of its calls comes back; yield after each."""
    work()
    for number in range(1, MOST_CALLS):
        if not interrupted_at(number, work, places):
            return
        gc.collect()
        yield number
    raise AssertionError(f"it makes more than {MOST_CALLS} calls")


def share():
    """Share a new tensor, and drop it."""
    return sharedtensor.arange(4).share_memory_().tolist()


def be_interrupted(work, after, most, places=COMING_BACK):
    """Interrupt some work at each place, in a process of its own; do `after` each time.

    Where a function of C has just returned the number of a descriptor nobody has it,
    so an exception there loses it: at `most` so many places.
    """
    raised = []

    def note(error):  # interrupts in finalizers are reported, and nothing else is
        is_of_logging = getattr(error.object, "__module__", None) == "logging"
        if not isinstance(error.exc_value, Interrupt) and not is_of_logging:
            raised.append(error.exc_value)

    sys.unraisablehook = note
    work()
    gc.collect()
    number, before = 0, descriptors()
    for place in each_place(work, places):
        after()
        number = place
    gc.collect()
    assert raised == []
    assert number > 10
    eventually(lambda: descriptors() - before <= most)  # a thread may write still


def receive_interrupted(most):
    """Send a tensor to this process again and again, and interrupt that."""
    ours, theirs = mp.Pipe()
    sent = sharedtensor.arange(4)

    def receive():
        ours.send(sent)
        return theirs.recv().tolist()

    def receive_what_is_left():
        while theirs.poll():
            assert theirs.recv().tolist() == [0, 1, 2, 3]
        assert receive() == [0, 1, 2, 3]

    be_interrupted(receive, receive_what_is_left, most)


def in_a_child(fork, function, *arguments):
    """Run a function in a process of its own: what is lost there is not ours."""
    child = fork.Process(target=function, args=arguments)
    gc.freeze()  # the child collects its own garbage alone, which takes much less time
    child.start()
    gc.unfreeze()
    child.join(120)
    ended_with = child.exitcode
    child.kill()
    assert ended_with == 0


def test_an_interrupted_share_raises_that_exception_and_the_next_one_works(
    strategy, fork
):
    in_a_child(fork, be_interrupted, share, share, 0)


def test_an_interrupted_receive_raises_that_exception_and_the_next_one_works(
    strategy, fork
):
    in_a_child(fork, receive_interrupted, 0)


def fork_a_child():
    """Fork a child that ends at once, wherever an exception arises in it."""
    parent = os.getpid()
    try:
        os.fork()
    finally:
        if os.getpid() != parent:
            os._exit(0)


def fork_interrupted(places):
    """Fork a process that has a name, and interrupt that."""
    held = sharedtensor.arange(4).share_memory_()

    def is_ready_again():
        while True:
            with suppress(ChildProcessError):
                os.waitpid(-1, 0)
                continue
            break
        assert not client._client.lock.is_owned()
        assert not client._client.lock.jobs
        client.sync()

    be_interrupted(fork_a_child, is_ready_again, 4, places)
    assert held.tolist() == [0, 1, 2, 3]


@BY_NAME
@pytest.mark.parametrize("places", [BEGINNING, COMING_BACK])
def test_an_interrupted_fork_leaves_the_client_as_it_was(strategy, fork, places):
    """The first function of Python after a fork is where its signals are handled."""
    in_a_child(fork, fork_interrupted, places)


def announce_interrupted():
    """Announce a message where the lock is held, and interrupt that and its end."""
    ends = []

    def announce():
        ends.append(client.announce(["sharedtensor-test-interrupts"]))

    def have_files_of_my_own():
        ends.clear()
        mine = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]
        client.sync()
        for number in mine:
            os.fstat(number)
            os.close(number)

    def work():
        client._client.locked(announce)

    be_interrupted(work, have_files_of_my_own, 9)


@BY_NAME
def test_a_queued_message_closes_its_descriptor_once(strategy, fork):
    """Nor does it send a file of the program that has its number now."""
    in_a_child(fork, announce_interrupted)


NAMES = ["sharedtensor-test-first", "sharedtensor-test-second"]
held = []


def register(segment):
    client.register(NAMES[0])


def hold_two(segment):
    """Hold two names by descriptors: for the second one the first is registered."""
    for name in NAMES:
        client.hold(name, client.address(), client.announce([name]))


def open_by_name(segment):
    """Open a segment by its name, as a receive does."""
    client.announce_counted(segment.token)
    where = segment.address, announcements.COUNTED
    held.append(segment.strategy.open(None, segment.token, segment.nbytes, where))


def hold_interrupted(hold, monkeypatch):
    """Interrupt what holds names; the manager has none of them when they are dropped.

    As often as it was told of a name, it hears that this process gives it up.
    """
    shared = sharedtensor.arange(4).share_memory_()
    segment = shared.storage.segment
    monkeypatch.setattr(segments, "map_shared", lambda target, fd: None)
    # That of pytest keeps what the frames of an interrupted finalizer refer to.
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    in_flight = client.announce([segment.token])  # holds the name from here on
    client.release(segment.token)
    work = functools.partial(hold, segment)

    def drop_all():
        held.clear()
        for name in NAMES:
            client.release(name)
        gc.collect()
        client.sync()
        assert client.status()["holds"] == before

    held.clear()
    client.sync()
    before = client.status()["holds"]
    work()
    drop_all()
    for _ in each_place(work):
        drop_all()
    in_flight.close()


@BY_NAME
@pytest.mark.parametrize("hold", [register, hold_two, open_by_name])
def test_an_interrupted_use_of_a_name_is_given_up(strategy, fork, monkeypatch, hold):
    in_a_child(fork, hold_interrupted, hold, monkeypatch)


@pytest.fixture
def under_the_lock():
    """The lock of the manager's client, as where a signal handler interrupts it."""
    client.address()
    section = client._client.lock.hold(20)
    assert next(section)
    yield
    section.close()


@BY_NAME
def test_a_handler_shares_by_the_name_of_its_manager(strategy, under_the_lock):
    assert client.address() == client._client.own
    assert share() == [0, 1, 2, 3]


def test_a_handler_that_asks_the_manager_is_refused_at_once(under_the_lock):
    with pytest.raises(ManagerError, match="A signal handler or a finalizer"):
        client.sync()


@BY_NAME
def test_the_pipe_of_a_message_is_made_where_no_fork_can_be(strategy, monkeypatch):
    made, queued = [], []
    pipe, tell_soon = client.pipe, client._client.tell_soon

    def queue(kind, *arguments):
        queued.append(kind)
        tell_soon(kind, *arguments)

    def noted():
        made.append(client._client.lock.is_owned())
        return pipe()

    monkeypatch.setattr(client, "pipe", noted)
    monkeypatch.setattr(client._client, "tell_soon", queue)
    ours, theirs = mp.Pipe()
    with ours, theirs:
        ours.send(sharedtensor.arange(4))
        assert theirs.recv().tolist() == [0, 1, 2, 3]
    assert made == [True]
    assert set(queued) <= {messages.RELEASE}, "all else is told when it is said"


def test_a_name_is_found_by_its_own_descriptor_though_another_is_kept_meanwhile():
    last = announcements.LastAnnouncement()
    mine, others = OwnedDescriptor(-1), OwnedDescriptor(-1)
    for owned in (mine, others):
        owned.fd = 1 << 20  # open, as far as anybody looks
    kept = []

    def keep_another(frame, event, argument):
        if event == "line" and len(kept) < 2:
            kept.append(frame.f_lineno)
            if len(kept) == 2:  # between two steps of `find`
                last.keep("mine", mine)
        return keep_another

    last.keep("others", others)
    sys.settrace(lambda frame, event, argument: keep_another)
    try:
        found = last.find("mine")
    finally:
        sys.settrace(None)
        for owned in (mine, others):
            owned.fd = -1
    assert len(kept) == 2
    assert found in (None, mine)
