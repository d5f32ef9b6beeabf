"""What an exception of a signal handler leaves, wherever it arises. Clause FAULT-2."""

import gc
import os
import sys
from contextlib import suppress

import pytest
import sharedtensor
import sharedtensor.multiprocessing as mp
from holdings import descriptors, eventually
from interrupts import BEGINNING, COMING_BACK, Interrupt, interrupted_at
from sharedtensor import announcements, state
from sharedtensor.descriptors import OwnedDescriptor
from sharedtensor.names import program

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
    assert number > 2
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
    child.start()
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
        assert not state.moving._is_owned()

    be_interrupted(fork_a_child, is_ready_again, 0, places)
    assert held.tolist() == [0, 1, 2, 3]


@BY_NAME
@pytest.mark.parametrize("places", [BEGINNING, COMING_BACK])
def test_an_interrupted_fork_leaves_no_lock_and_no_descriptor(strategy, fork, places):
    """The first function of Python after a fork is where its signals are handled."""
    in_a_child(fork, fork_interrupted, places)


def put_in_flight():
    """Hold names for a message, and close that."""
    program.in_flight(["sharedtensor-1-" + "0" * 32] * 2).close()


def test_an_interrupted_message_with_names_loses_no_descriptor(fork):
    in_a_child(fork, be_interrupted, put_in_flight, int, 0)


def test_a_name_is_found_by_its_own_descriptor_though_another_is_kept_meanwhile():
    last = announcements.LastAnnouncement()
    mine, others = OwnedDescriptor.pair_opened_by(os.pipe)
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
    assert len(kept) == 2
    assert found in (None, mine)
