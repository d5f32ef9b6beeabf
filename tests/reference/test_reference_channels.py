"""Queues that are closed, received, inherited, or cannot start their thread."""

import multiprocessing
import os
import threading
from os.path import lexists

import pytest
import sharedtensor
import sharedtensor.multiprocessing as mp

WAITING = 3000  # messages, more than a pipe takes
RECEIVED = [("spawn", "Queue"), ("forkserver", "JoinableQueue")]
"""Start methods whose processes receive a queue, and do not inherit it."""


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue"])
def test_queue_that_was_used_and_closed_has_no_descriptors(fork, kind):
    queue = getattr(fork, kind)()
    queue.put("short")
    queue.close()
    queue.join_thread()
    assert queue._reader.closed
    assert queue._writer.closed
    with pytest.raises(OSError, match="is closed"):
        queue.empty()


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue"])
def test_queue_that_was_not_used_and_closed_is_empty(fork, kind):
    queue = getattr(fork, kind)()
    queue.close()
    queue.join_thread()
    assert queue.empty()


def test_forked_child_has_not_used_the_queue_that_its_parent_has(fork):
    queue = fork.Queue()
    queue.put("short")
    process = fork.Process(target=close_and_look, args=(queue,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert queue.get(timeout=30) == "short"


def close_and_look(queue):
    queue.close()
    queue.empty()


@pytest.mark.parametrize(("method", "kind"), RECEIVED)
def test_fork_of_a_process_that_received_a_queue_puts_on_it(method, kind):
    """Its parent's messages wait for room meanwhile, and are written by a thread."""
    ctx = mp.get_context(method)
    queue, answers = getattr(ctx, kind)(), ctx.Queue()
    process = ctx.Process(target=fill_and_fork, args=(queue, answers))
    process.start()
    answers.get(timeout=60)
    found = [queue.get(timeout=30) for _ in range(WAITING + 1)]
    process.join()
    assert process.exitcode == 0
    assert sorted(found) == [*range(WAITING), WAITING]


def fill_and_fork(queue, answers):
    """Put more than a pipe takes, and let a forked child put one message."""
    for number in range(WAITING):
        queue.put(number)
    child = mp.get_context("fork").Process(target=queue.put, args=(WAITING,))
    child.start()
    answers.put("the fork puts while nobody reads")
    child.join()
    assert child.exitcode == 0


@pytest.mark.parametrize(("method", "kind"), RECEIVED)
def test_fork_keeps_nothing_of_what_waits_in_a_received_queue(method, kind):
    context = mp.get_context(method)
    queue, answers = getattr(context, kind)(), context.Queue()
    process = context.Process(target=count_in_a_fork, args=(queue, answers))
    process.start()
    assert answers.get(timeout=60) > 0  # before the fork
    assert answers.get(timeout=60) == 0  # in it
    for _ in range(WAITING):
        queue.get(timeout=30)
    process.join()
    assert process.exitcode == 0


def count_in_a_fork(queue, answers):
    """Let messages with a tensor wait, and say which segments a forked child has."""
    tensor = sharedtensor.ones(20_000)
    for _ in range(WAITING):
        queue.put(tensor)
    del tensor
    answers.put(segments_open())
    child = mp.get_context("fork").Process(target=say_segments_open, args=(answers,))
    child.start()
    child.join()


def say_segments_open(answers):
    answers.put(segments_open())


def segments_open():
    """Return how many descriptors of this process are those of segments."""
    paths = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum("sharedtensor" in os.readlink(path) for path in paths if lexists(path))


def test_pipe_of_one_direction_knows_its_ends():
    reader, writer = mp.Pipe(duplex=False)
    with pytest.raises(OSError, match="read-only"):
        reader.send(1)
    with pytest.raises(OSError, match="write-only"):
        writer.recv()


def test_connections_are_sent_through_connections():
    ours, theirs = mp.Pipe()
    first, second = mp.Pipe()
    ours.send(second)
    second.close()
    received = theirs.recv()
    received.send(sharedtensor.tensor([3]))
    assert first.recv().tolist() == [3]


@pytest.fixture
def no_room_for_a_thread():
    threading.stack_size(1 << 44)
    yield
    threading.stack_size(0)


def put_until_it_is_refused(queue):
    """Put numbers until there is no room in the pipe; return how many were accepted."""
    for number in range(10_000):
        try:
            queue.put(number)
        except RuntimeError:
            return number
    raise AssertionError("all were accepted")


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue"])
def test_put_that_cannot_start_a_thread_is_refused_and_later_ones_arrive(
    fork, kind, no_room_for_a_thread
):
    queue = getattr(fork, kind)()
    accepted = put_until_it_is_refused(queue)
    with pytest.raises(RuntimeError, match="thread"):
        queue.put("refused, too")
    threading.stack_size(0)
    for number in range(accepted, accepted + 3):
        queue.put(number)
    numbers = [queue.get(timeout=10) for _ in range(accepted + 3)]
    assert numbers == list(range(accepted + 3))
    queue.close()
    queue.join_thread()


def test_queue_whose_thread_cannot_be_started_is_closed(fork, no_room_for_a_thread):
    queue = fork.Queue()
    put_until_it_is_refused(queue)
    queue.close()
    queue.join_thread()
    assert queue._reader.closed
    assert queue._writer.closed


def first_elements(tensors):
    """Raise unless each tensor of the arguments has the value of its place."""
    assert [float(one.numpy()[0]) for one in tensors] == list(range(len(tensors)))


@pytest.mark.parametrize("start_method", ["fork", "spawn", "forkserver"])
def test_storages_with_one_segment_are_arguments_of_a_process_of_others(
    strategy, start_method
):
    tensors = [sharedtensor.tensor([float(n)]) for n in range(20)]
    ours, theirs = mp.Pipe()
    ours.send(tensors)  # which moves them into one segment
    theirs.recv()
    assert len({one.storage.segment for one in tensors}) == 1
    context = multiprocessing.get_context(start_method)
    process = context.Process(target=first_elements, args=(tensors,))
    process.start()
    process.join()
    assert process.exitcode == 0
