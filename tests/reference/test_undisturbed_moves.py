"""What threads and signal handlers do while a storage moves harms neither of them.

The handler runs wherever the interpreter can run it, or switch threads: where a
function begins, where a call has returned, and where a loop begins again. So no place
is missed.
"""

import dis
import functools
import gc
import itertools
import mmap
import os
import signal
import sys
import threading

import pytest
import sharedtensor
import sharedtensor.multiprocessing as mp
from holdings import eventually, own_names
from interrupts import MOST_CALLS, interrupted_at
from sharedtensor import memory, protocol, segments, state, storage, strategies

MOVERS = {module.__file__ for module in (memory, protocol, segments, state, strategies)}


@pytest.fixture(params=["alone", "beside_a_thread"])
def threads(request, monkeypatch):
    """The move takes this for the number of threads, whatever runs the tests."""
    frames = dict.fromkeys(range(1 + (request.param != "alone")))
    monkeypatch.setattr(sys, "_current_frames", lambda: frames)


@pytest.fixture(autouse=True)
def nothing_left():
    """Names of segments go with the tensors, also where one has had two storages."""
    before = set(own_names())
    yield
    gc.collect()
    eventually(lambda: set(own_names()) <= before)


@pytest.fixture
def handler():
    """Gives a function that sets the handler of the signal of `interrupted`."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda act: signal.signal(signal.SIGUSR1, lambda *ignored: act())
    signal.signal(signal.SIGUSR1, before)


@functools.cache
def places_of(code):
    """Return the offsets of bytecodes before which the interpreter runs handlers."""
    places = set()
    for one, following in itertools.pairwise(dis.get_instructions(code)):
        if one.opname == "RESUME" or one.opname.startswith("CALL"):
            places.add(following.offset)
        elif one.opname.startswith("JUMP_BACKWARD"):
            places.add(one.argval)
    return places


def interrupted(move, place, files=MOVERS):
    """Move; a signal comes at one place of it. Return whether it has come."""
    left = place + 1

    def trace(frame, event, argument):
        nonlocal left
        if event == "call":
            if frame.f_code.co_filename not in files:
                return None
            # Since Python 3.13 opcodes are traced only where `f_trace` is set first.
            frame.f_trace, frame.f_trace_lines = trace, False
            frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lasti in places_of(frame.f_code):
            left -= 1
            if not left:
                sys.settrace(None)
                signal.raise_signal(signal.SIGUSR1)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        move()
    finally:
        sys.settrace(before)
    return not left


def as_another_process(receive):
    """Receive without what this process knows of the segments that it has made."""
    state.segments.clear()
    return receive()


def share_alone(tensors):
    for tensor in tensors:
        tensor.share_memory_()


def send_together(tensors):
    ours, theirs = mp.Pipe()
    ours.send(tensors)
    return theirs


@pytest.mark.parametrize("move", [share_alone, send_together])
def test_what_a_handler_sends_while_it_moves_is_one_memory_or_refused(
    strategy, handler, move
):
    refused = sent = 0
    for place in itertools.count():
        tensors = [sharedtensor.arange(3), sharedtensor.arange(3)]
        ours, theirs = mp.Pipe()

        def send(tensors=tensors, channel=ours):
            for tensor in tensors:
                try:
                    channel.send(tensor)
                except sharedtensor.NestedMoveError:
                    channel.send(None)

        handler(send)
        has_come = interrupted(lambda tensors=tensors: move(tensors), place)
        assert [tensor.tolist() for tensor in tensors] == [[0, 1, 2]] * 2
        if not has_come:
            break
        for number, tensor in enumerate(tensors):
            arrived = as_another_process(theirs.recv)
            refused += arrived is None
            sent += arrived is not None
            if arrived is not None:
                tensor[0] = place + number
                arrived[1] = -place
                assert arrived.tolist() == [place + number, -place, 2]
                assert tensor.tolist() == [place + number, -place, 2]
    assert refused
    assert sent


@pytest.mark.parametrize(
    ("move", "part"),
    [
        (share_alone, memory.LARGEST_WRITE),
        (share_alone, 16),
        (send_together, memory.LARGEST_WRITE),
        (send_together, mmap.PAGESIZE),
    ],
)
def test_what_a_handler_writes_while_a_storage_moves_stays(
    threads, handler, move, part, monkeypatch
):
    """Also where one write into the segment does not take all of it."""
    monkeypatch.setattr(memory, "LARGEST_WRITE", part)
    for place in itertools.count():
        tensors = [sharedtensor.arange(3, dtype="int64") for _ in range(2)]
        arrays = [tensor.numpy() for tensor in tensors]

        def write(arrays=arrays):
            for array in arrays:
                array[1] = 42

        handler(write)
        has_come = interrupted(lambda tensors=tensors: move(tensors), place)
        expected = [[0, 42 if has_come else 1, 2]] * 2
        assert [array.tolist() for array in arrays] == expected, place
        arrived = as_another_process(send_together(tensors).recv)
        assert [tensor.tolist() for tensor in arrived] == expected, place
        if not has_come:
            break


def test_handler_sends_others_while_a_storage_moves(strategy, handler):
    for place in itertools.count():
        moving, others = sharedtensor.arange(3), [sharedtensor.arange(4), "and"]
        ours, theirs = mp.Pipe()

        def send(others=others, channel=ours):
            channel.send([*others, sharedtensor.arange(5)])

        handler(send)
        if not interrupted(moving.share_memory_, place):
            break
        first, word, _ = as_another_process(theirs.recv)
        others[0][0] = 9
        assert (first.tolist(), word) == ([9, 1, 2, 3], "and")
        assert moving.is_shared()
        assert moving.tolist() == [0, 1, 2]


@pytest.mark.parametrize("is_resized_by_the_handler", [False, True])
def test_storage_is_not_resized_and_shared_at_once(handler, is_resized_by_the_handler):
    refused = 0
    for place in itertools.count():
        tensor = sharedtensor.arange(3, dtype="int64")
        resize, share = lambda t=tensor: t.resize_(5000), tensor.share_memory_
        first, second = share, resize
        if not is_resized_by_the_handler:
            first, second = resize, share
        errors = []

        def interfere(second=second, errors=errors):
            try:
                second()
            except (sharedtensor.NestedMoveError, sharedtensor.ResizeError) as error:
                errors.append(error)

        handler(interfere)
        try:
            has_come = interrupted(first, place, MOVERS | {storage.__file__})
        except sharedtensor.ResizeError:
            has_come = True
            assert not is_resized_by_the_handler
        kept = tensor.storage
        if kept.segment is not None:
            assert kept.segment.nbytes == kept.nbytes
        assert tensor.numpy().ravel()[:3].tolist() == [0, 1, 2]
        refused += len(errors)
        if not has_come:
            break
        assert send_together([tensor]).recv()[0].shape == tensor.shape
    assert refused


def test_storage_that_another_thread_shares_meanwhile_is_not_resized(monkeypatch):
    """The thread that resizes waits for the lock before the move ends."""
    tensor = sharedtensor.arange(3)
    asked, errors = threading.Event(), []
    lock, move = state.moving, memory.move

    class Noting:
        def __enter__(self):
            if threading.current_thread() is resizing:
                asked.set()
            return lock.acquire()

        def __exit__(self, *ignored):
            lock.release()

    def resize():
        try:
            tensor.resize_(5000)
        except sharedtensor.ResizeError as error:
            errors.append(error)

    def move_while_it_waits(*arguments):
        resizing.start()
        assert asked.wait(30)
        move(*arguments)

    resizing = threading.Thread(target=resize)
    monkeypatch.setattr(state, "moving", Noting())
    monkeypatch.setattr(memory, "move", move_while_it_waits)
    tensor.share_memory_()
    resizing.join(30)
    assert len(errors) == 1
    assert tensor.shape == (3,)
    assert tensor.storage.nbytes == tensor.storage.segment.nbytes
    arrived = as_another_process(send_together([tensor]).recv)[0]
    tensor[0] = 7
    assert arrived.tolist() == [7, 1, 2]


class LastIsRefused(memory.Group):
    """Memories of which the last cannot be mapped: it begins within a page."""

    __slots__ = ()

    @property
    def pieces(self):
        """What moves, to impossible places in the end."""
        *pieces, last = super().pieces
        return [*pieces, last._replace(offset=last.offset + 8)]


def test_an_interrupted_move_of_several_that_is_refused_leaves_all_private(threads):
    """Some of them are mapped before the last is refused. Clauses FAIL-6, THREAD-6."""
    refused, has_come = 0, True
    for place in range(1, MOST_CALLS):
        tensors = [sharedtensor.arange(3) for _ in range(5)][::2]  # no neighbours
        group = LastIsRefused([tensor.storage.memory for tensor in tensors])
        assert len(group.pieces) > 1
        fd = os.memfd_create("segment")

        def move(group=group, fd=fd):
            nonlocal refused
            with pytest.raises(OSError, match="Mapping a segment"):
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
