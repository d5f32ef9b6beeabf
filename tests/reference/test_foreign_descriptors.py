"""Descriptors that the program has closed, and whose numbers its own files have.

Clauses ENV-7, HANDLE-3 and THREAD-7, for each kind of descriptor that is kept.
"""

import gc
import glob
import itertools
import os
import sys

import pytest
import sharedtensor
import sharedtensor.multiprocessing as mp
from holdings import eventually
from interrupts import BEGINNING, be_interrupted, in_a_child, interrupted_at
from sharedtensor.descriptors import hold_reserve
from sharedtensor.errors import DescriptorError
from sharedtensor.names import program

BY_NAME = pytest.mark.parametrize("strategy", ["file_system"], indirect=True)
BY_DESCRIPTOR = pytest.mark.parametrize("strategy", ["file_descriptor"], indirect=True)
CONTENT = b"a file of the program"


class OwnFile:
    """A file of the program in the place of a descriptor that is not its own."""

    def __init__(self, number):
        self.number = number
        made = os.memfd_create("of-the-program")
        os.dup2(made, number)
        os.close(made)
        os.write(number, CONTENT)

    def is_as_it_was(self):
        gc.collect()
        try:
            return os.pread(self.number, 100, 0) == CONTENT
        finally:
            os.close(self.number)


@BY_DESCRIPTOR
def test_a_segment_whose_descriptor_was_replaced_is_not_sent(strategy, capfd):
    """Neither at once, nor by the thread of a queue in which it waits."""
    tensor = sharedtensor.arange(3).share_memory_()
    ours, theirs = mp.Pipe()
    queue, filler = mp.Queue(), [b"x" * 1000] * 100
    for each in (*filler, tensor):
        queue.put(each)
    file = OwnFile(tensor.storage.segment.fd)
    with pytest.raises(DescriptorError, match="has closed descriptor"):
        ours.send(tensor)
    ours.send(tensor.clone())
    assert theirs.recv().tolist() == tensor.tolist() == [0, 1, 2]
    queue.put("after")
    assert [queue.get(timeout=20) for _ in filler] == filler
    assert queue.get(timeout=20) == "after"
    assert "DescriptorError" in capfd.readouterr().err
    del tensor
    assert file.is_as_it_was()


USES = {
    "send": lambda ours, theirs: ours.send(1),
    "receive": lambda ours, theirs: ours.recv(),
    "pickle": lambda ours, theirs: theirs.send(ours),
}


@pytest.mark.parametrize("use", [*USES, "close", "drop"])
def test_an_end_of_a_pipe_that_was_replaced_is_not_used(use):
    ours, theirs = mp.Pipe()
    file = OwnFile(ours.fileno())
    if use in USES:
        with pytest.raises(DescriptorError, match="has closed descriptor"):
            USES[use](ours, theirs)
    elif use == "close":
        ours.close()
    del ours
    assert file.is_as_it_was()


@BY_DESCRIPTOR
def test_a_descriptor_of_another_segment_is_no_less_foreign(strategy):
    first = sharedtensor.arange(3).share_memory_()
    number = first.storage.segment.fd
    os.close(number)
    second = sharedtensor.arange(4).share_memory_()
    assert second.storage.segment.fd == number
    del first
    gc.collect()
    ours, theirs = mp.Pipe()
    ours.send(second)
    assert theirs.recv().tolist() == [0, 1, 2, 3]


@BY_NAME
@in_a_child
def test_what_shows_the_keeper_that_it_is_needed_is_not_closed(strategy):
    """Replaced, and then given up for that of another keeper."""
    sharedtensor.arange(3).share_memory_()
    presence = OwnFile(program._presence.fd)
    program.start_keeper(program.current())
    assert presence.is_as_it_was()


def test_a_reserve_that_was_replaced_is_not_closed():
    held = hold_reserve()
    file = OwnFile(held.spare[0].fd)
    held.fill()
    assert len({owned.fd for owned in held.spare} - {file.number}) == held.COUNT
    held.spend()
    assert file.is_as_it_was()


# Finalizers that are interrupted where they begin


def share():
    """Share a new tensor, and drop it."""
    return sharedtensor.arange(4).share_memory_().tolist()


def send_to_itself():
    """Send a tensor over a pipe that is dropped, and not closed."""
    ours, theirs = mp.Pipe()
    ours.send(sharedtensor.arange(4))
    return theirs.recv().tolist()


@in_a_child
def test_a_finalizer_that_is_interrupted_where_it_begins_is_made_up_for(strategy):
    be_interrupted(send_to_itself, share, BEGINNING)


@BY_NAME
@in_a_child
def test_an_interrupted_drop_leaves_no_name_though_it_was_sent(strategy):
    """Interrupt the drop of a tensor that was sent at each place; then share another.

    No name is left, though the last message with it has been kept to stand for more.
    """
    sys.unraisablehook = lambda unraisable: None  # that of pytest keeps the frames
    names = f"/dev/shm/sharedtensor-{os.getpid()}-*"
    ours, theirs = mp.Pipe()
    for place in itertools.count(1):
        held = [sharedtensor.arange(3)]
        ours.send(held[0])
        theirs.recv()
        if not interrupted_at(place, held.clear, BEGINNING):
            break
        share()
        eventually(lambda: not glob.glob(names))
    assert place > 1
