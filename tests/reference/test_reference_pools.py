"""A task or a result that is lost costs a pool that one, and nothing else.

Clauses FAIL-2, FAULT-2 and LIFE-19.
"""

import contextlib
import gc
import os
import resource
import signal
import threading

import pytest
import sharedtensor
from holdings import eventually, limit_for
from sharedtensor.multiprocessing import pool as pools

TIMEOUT = 30.0
SIZES = [0, 100_000]
"""A text of so many characters makes a message that fits into a packet, or does not."""
ERRORS = [ValueError("odd"), OSError(5, "odd"), EOFError("odd"), MemoryError("odd")]

taken = []
"""The descriptors that a worker has used up."""


def take_all(found):
    """Take all free descriptors, and those of earlier pools, which are in cycles."""
    gc.collect()
    with contextlib.suppress(OSError):
        while True:
            found.append(os.open("/dev/null", os.O_RDONLY))


@contextlib.contextmanager
def used_up():
    """Use up all descriptors of this process."""
    found = []
    try:
        take_all(found)
        yield
    finally:
        for fd in found:
            os.close(fd)


@pytest.fixture(autouse=True)
def few_descriptors():
    """Lower the limit, so that they are used up soon; workers have it, too."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit_for(50), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.fixture
def pool(fork, strategy):
    """A pool of one worker, which takes the tasks in their order."""
    with fork.Pool(1) as made:
        assert made.apply(total, (sharedtensor.ones(3),)) == 3
        yield made


def make(number, size=0):
    return sharedtensor.tensor([float(number)]), "x" * size


def total(tensor, text=""):
    return sum(tensor.tolist())


def use_up():
    take_all(taken)
    return os.getpid()


def give_back():
    while taken:
        os.close(taken.pop())
    return os.getpid()


def assert_goes_on(pool):
    """Assert that tensors come and go, in order."""
    tensors = [sharedtensor.tensor([float(number)]) for number in range(5)]
    results = [pool.apply_async(total, (tensor,)) for tensor in tensors]
    assert [result.get(TIMEOUT) for result in results] == [0, 1, 2, 3, 4]
    found = pool.imap(make, range(5))
    assert [found.next(TIMEOUT)[0].item() for _ in range(5)] == [0, 1, 2, 3, 4]


def assert_is_refused(get):
    with pytest.raises(sharedtensor.ResourceError, match="Raise the limit"):
        get(TIMEOUT)


def test_task_for_which_a_worker_has_no_descriptor_is_refused(pool):
    """The worker that it has lives on."""
    worker = pool.apply_async(use_up).get(TIMEOUT)
    tasks = [(sharedtensor.ones(3), "x" * size) for size in SIZES]
    for result in [pool.apply_async(total, task) for task in tasks]:
        assert_is_refused(result.get)
    assert pool.apply_async(give_back).get(TIMEOUT) == worker
    assert_goes_on(pool)


def test_results_for_which_there_is_no_descriptor_are_refused(pool):
    with used_up():
        for size in SIZES:
            assert_is_refused(pool.apply_async(make, (1, size)).get)
        assert pool.apply_async(give_back).get(TIMEOUT)
        whole = pool.map_async(make, range(4), chunksize=2)
        parts = pool.imap(make, range(3))
        unordered = pool.imap_unordered(make, range(3))
        assert_is_refused(whole.get)
        for found in (parts, unordered):
            for _ in range(3):
                assert_is_refused(found.next)
            with pytest.raises(StopIteration):
                found.next(TIMEOUT)
    assert_goes_on(pool)


def test_pool_that_is_closed_ends_after_a_lost_result(pool):
    with used_up():
        result = pool.apply_async(make, (1,))
        pool.close()
        assert_is_refused(result.get)
    pool.join()


def wait_for_ever(said):
    os.write(said, b"+")
    signal.pause()


def test_pool_without_descriptors_is_terminated(fork, strategy):
    """What its pipe still has is lost, and its worker ends."""
    reader, writer = os.pipe()
    pool = fork.Pool(1)
    pool.apply_async(wait_for_ever, (writer,))
    assert os.read(reader, 1) == b"+"
    for _ in range(3):
        pool.apply_async(total, (sharedtensor.ones(3),))
    assert pool._inqueue._reader.poll(TIMEOUT)
    (worker,) = pool._pool
    with used_up():
        pool.terminate()
        eventually(lambda: not worker.is_alive(), TIMEOUT)
    assert not pool._task_handler.is_alive()
    for fd in (reader, writer):
        os.close(fd)


class Unbuilt:
    """What raises when it is rebuilt."""

    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        return _raise, (self.error,)


def _raise(error):
    raise error


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_task_or_result_that_cannot_be_rebuilt_raises_where_it_is_awaited(fork, error):
    """It is no end of the pipe, whatever it raises, and the worker lives on."""
    with fork.Pool(1) as pool:
        worker = pool.apply(os.getpid)
        with pytest.raises(type(error), match="odd"):
            pool.apply_async(Unbuilt, (error,)).get(TIMEOUT)
        with pytest.raises(type(error), match="odd") as caught:
            pool.apply_async(print, (Unbuilt(error),)).get(TIMEOUT)
        assert "unpack_message" in str(caught.value.__cause__)
        assert pool.apply(os.getpid) == worker
        assert_goes_on(pool)


@pytest.mark.parametrize("kind", [pools.Tasks, pools.Results])
def test_what_is_lost_and_has_no_number_is_passed_over_and_the_end_is_not(fork, kind):
    queue, helped = kind(ctx=fork), threading.current_thread()
    queue.put(Unbuilt(OSError()))
    queue.put(None)
    assert queue.get() is None
    queue._writer.close()
    with pytest.raises(EOFError):
        queue.get()
    assert pools.Pool._help_stuff_finish(queue, helped, 1) is None
    queue._reader.close()
    with pytest.raises(OSError, match="closed"):
        queue.get()
    assert pools.Pool._help_stuff_finish(queue, helped, 1) is None


NUMBERS = [(0, 0), (1, 255), (256, 65_535), (65_536, 2**31 - 1), (2**31, 2**70)]


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("size", SIZES)
def test_job_and_index_are_known_of_what_is_lost(fork, numbers, size):
    text, error = "x" * size, KeyError(*numbers)
    queue = pools.Results(ctx=fork)
    queue.put((*numbers, (True, [text, Unbuilt(error)])))
    job, index, (succeeded, found) = queue.get()
    assert (job, index, succeeded, found.args) == (*numbers, False, numbers)
    tasks = pools.Tasks(ctx=fork)
    tasks.put((*numbers, print, (text, Unbuilt(error)), {}))
    job, index, function, arguments, names = tasks.get()
    assert (job, index, names) == (*numbers, {})
    with pytest.raises(KeyError):
        function(*arguments)
