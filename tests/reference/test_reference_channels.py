"""Queues that are closed, received, inherited, or cannot start their thread."""

import os
import threading
from os.path import lexists

import pytest
import sharedtensor
import sharedtensor.multiprocessing as mp

WAITING = 3000  # messages, more than a pipe takes


def assert_ends_closed(queue):
    """Close a queue that this process has put on: it has no descriptors then."""
    queue.close()
    queue.join_thread()
    assert queue._reader.closed
    assert queue._writer.closed
    with pytest.raises(OSError, match="is closed"):
        queue.empty()


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue"])
def test_queue_that_is_closed_has_no_descriptors_if_it_was_used_here(fork, kind):
    unused = getattr(fork, kind)()
    unused.close()
    unused.join_thread()
    assert unused.empty()
    queue = getattr(fork, kind)()
    queue.put("short")
    child = fork.Process(target=close_and_look, args=(queue,))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert queue.get(timeout=30) == "short"
    assert_ends_closed(queue)


def close_and_look(queue):
    """Close a queue that the parent alone has used."""
    queue.close()
    queue.empty()


@pytest.mark.parametrize(
    ("method", "kind"), [("spawn", "Queue"), ("forkserver", "JoinableQueue")]
)
def test_fork_of_a_process_that_received_a_queue_begins_anew(method, kind):
    """It puts on it, and keeps nothing of what waits there in its parent."""
    ctx = mp.get_context(method)
    queue, answers = getattr(ctx, kind)(), ctx.Queue()
    process = ctx.Process(target=fill_and_fork, args=(queue, answers))
    process.start()
    try:
        assert answers.get(timeout=60) > 0  # before the fork
        assert answers.get(timeout=60) == 0  # in it
        found = [queue.get(timeout=30)[0] for _ in range(WAITING + 1)]
        process.join()
    finally:
        process.kill()
    assert process.exitcode == 0
    assert sorted(found) == [*range(WAITING), WAITING]


def fill_and_fork(queue, answers):
    """Put more than a pipe takes, and let a forked child put one message."""
    tensor = sharedtensor.ones(20_000)
    for number in range(WAITING):
        queue.put((number, tensor))
    del tensor
    answers.put(segments_open())
    fork = mp.get_context("fork")
    child = fork.Process(target=look_and_put, args=(queue, answers))
    child.start()
    child.join(60)
    ended_with = child.exitcode
    child.kill()
    assert ended_with == 0


def look_and_put(queue, answers):
    """Put a message while nobody reads, and say which segments are open here."""
    queue.put((WAITING, None))
    answers.put(segments_open())


def segments_open():
    """Return how many descriptors of this process are those of segments."""
    paths = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum("sharedtensor" in os.readlink(path) for path in paths if lexists(path))


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
    with pytest.raises(sharedtensor.ThreadError, match="ulimit -u"):
        queue.put("refused, too")
    threading.stack_size(0)
    for number in range(accepted, accepted + 3):
        queue.put(number)
    numbers = [queue.get(timeout=10) for _ in range(accepted + 3)]
    assert numbers == list(range(accepted + 3))
    assert_ends_closed(queue)


def test_queue_whose_thread_cannot_be_started_is_closed(fork, no_room_for_a_thread):
    queue = fork.Queue()
    put_until_it_is_refused(queue)
    assert_ends_closed(queue)
