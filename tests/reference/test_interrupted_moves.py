"""What an exception of a signal handler leaves of a storage that is being shared.

It is private, as it was, or shared and known, wherever the exception arises. Clauses
START-4, SHARE-5, RESHARE-4 and FAULT-2.
"""

import contextlib
import errno
import gc
import os
import pickle
import re
import sys
from functools import partial
from pathlib import Path

import pytest
import sharedtensor
import sharedtensor.multiprocessing as mp
from holdings import eventually, own_names
from interrupts import Interrupt, interrupted_at
from sharedtensor import memory, segments, state, transport

MOST_CALLS = 3000
NO_THREADS = 1


@pytest.fixture(params=["alone", "beside_a_thread"])
def threads(request, monkeypatch):
    """The move takes this for the number of threads, whatever runs the tests."""
    frames = dict.fromkeys(range(NO_THREADS + (request.param != "alone")))
    monkeypatch.setattr(sys, "_current_frames", lambda: frames)


@pytest.fixture(autouse=True)
def only_interrupts_in_finalizers(monkeypatch):
    """Interrupts in finalizers are reported there, and nothing else is."""
    raised = []

    def note(error):
        if not isinstance(error.exc_value, Interrupt):
            raised.append(error.exc_value)

    monkeypatch.setattr(sys, "unraisablehook", note)
    yield
    assert raised == []


def share_alone(tensors, channel):
    """Share each by itself."""
    for tensor in tensors:
        tensor.share_memory_()


def send_together(tensors, channel):
    """Share all that is small by one call, into one segment."""
    channel.send(tensors)


def new_tensors():
    """Return small tensors that are no neighbours, and a large one."""
    small = [sharedtensor.arange(3, dtype="int64") for _ in range(5)]
    return [*small[::2], sharedtensor.arange(1 << 14, dtype="int64")]


def are_mapped_shared(tensors):
    """Return of which tensors the kernel shares the pages, so also with a fork.

    What was mapped over the memory of a storage begins where that begins.
    """
    maps = Path("/proc/self/maps").read_text()
    begins = [f"{tensor.storage.address:x}" for tensor in tensors]
    return [bool(re.search(rf"^{at}-\S+ ...s", maps, re.M)) for at in begins]


def assert_each_is_private_or_known(tensors):
    """Each is what it says of itself, and what is shared comes home as it is."""
    shared = [tensor.is_shared() for tensor in tensors]
    assert are_mapped_shared(tensors) == shared
    ours, theirs = mp.Pipe()
    with ours, theirs:
        ours.send(tensors)
        arrived = theirs.recv()
    for tensor, home in zip(tensors, arrived, strict=True):
        assert home.storage is tensor.storage
        assert home.tolist()[:3] == tensor.tolist()[:3] == [0, 1, 2]


@pytest.mark.parametrize("move", [share_alone, send_together])
def test_an_interrupted_move_leaves_each_tensor_private_or_shared_and_known(
    strategy, threads, move
):
    outcomes = set()
    for place in range(1, MOST_CALLS):
        tensors = new_tensors()
        channel, other = mp.Pipe()
        with channel, other:
            if place == 1:
                move(new_tensors(), channel)  # the first time takes more calls
            has_come = interrupted_at(place, partial(move, tensors, channel))
        outcomes.add(tuple(tensor.is_shared() for tensor in tensors))
        assert_each_is_private_or_known(tensors)
        if not has_come:
            break
    assert not has_come
    assert (False,) * 4 in outcomes
    assert (True,) * 4 in outcomes


def test_a_move_whose_last_step_is_refused_leaves_the_tensor_private(
    strategy, threads, monkeypatch
):
    """Whichever step that is: of the functions that it calls, one after another."""

    def refuse(*ignored):
        raise OSError(errno.EPERM, "refused")

    tensor = sharedtensor.arange(3, dtype="int64")
    for module, step in ((segments, "seal"), (memory, "move")):
        if (strategy, step) == ("file_system", "seal"):
            continue
        with monkeypatch.context() as patch:
            patch.setattr(module, step, refuse)
            with pytest.raises(OSError, match="refused"):
                tensor.share_memory_()
        assert not tensor.is_shared()
        assert are_mapped_shared([tensor]) == [False]
    assert tensor.share_memory_().tolist() == [0, 1, 2]


class LastIsRefused(memory.Group):
    """Memories of which the last cannot be mapped: it begins within a page."""

    __slots__ = ()

    @property
    def pieces(self):
        """What moves, to impossible places in the end."""
        *pieces, last = super().pieces
        return [*pieces, last._replace(offset=last.offset + 8)]


def test_an_interrupted_move_of_several_that_is_refused_leaves_all_private(threads):
    """Some of them are mapped before the last is refused."""
    refused = 0
    for place in range(1, MOST_CALLS):
        tensors = new_tensors()[:-1]
        group = LastIsRefused([tensor.storage.memory for tensor in tensors])
        assert len(group.pieces) > 1
        fd = os.memfd_create("segment")

        def move(group=group, fd=fd):
            nonlocal refused
            with contextlib.suppress(OSError):
                memory.move(group, fd, ())
            refused += 1

        has_come = interrupted_at(place, move)
        os.pwrite(fd, b"\xff" * group.nbytes, 0)
        os.close(fd)
        assert [tensor.tolist() for tensor in tensors] == [[0, 1, 2]] * 3, place
        if not has_come:
            break
    assert not has_come
    assert refused


@pytest.mark.parametrize("strategy", ["file_system"], indirect=True)
def test_an_interrupted_receive_leaves_no_name(strategy):
    """As another process receives it: one that does not know the segment."""
    ours, theirs = mp.Pipe()
    before = set(own_names())

    def read():
        ours.send(sharedtensor.arange(3).share_memory_())
        state.known.clear()
        payload, descriptors = theirs.receive()
        return transport.Inbox(descriptors, payload)

    def receive(inbox):
        found = transport.receiving(inbox, pickle.loads, inbox.payload)
        assert found.tolist() == [0, 1, 2]

    with ours, theirs:
        receive(read())
        for place in range(1, MOST_CALLS):
            has_come = interrupted_at(place, partial(receive, read()))
            if not has_come:
                break
    assert not has_come
    gc.collect()
    eventually(lambda: set(own_names()) <= before)
