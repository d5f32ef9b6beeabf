"""A finalizer never waits for the lock that its thread may hold."""

import contextlib
import functools
import sys
import threading

import pytest
from interrupts import interrupted_at
from sharedtensor.finalizers import Busy, FinalizerLock, Postponed


@pytest.fixture
def lock():
    return FinalizerLock()


def held(lock):
    return contextlib.contextmanager(lock.hold)(60)


@pytest.fixture
def log():
    return []


def test_a_job_runs_at_once_under_the_lock_if_nobody_holds_it(lock, log):
    lock.run_soon(lambda: log.append(lock.is_owned()))
    assert log == [True]
    assert not lock.is_owned()


def test_jobs_queued_inside_run_in_their_order_when_the_lock_is_released(lock, log):
    with held(lock):
        lock.run_soon(lambda: log.append("first"))
        lock.run_soon(lambda: log.append("second"))
        log.append("inside")
    assert log == ["inside", "first", "second"]


def test_a_job_of_another_thread_does_not_wait(lock, log):
    with held(lock):
        thread = threading.Thread(target=lock.run_soon, args=(lambda: log.append(1),))
        thread.start()
        thread.join(timeout=60)
        assert not thread.is_alive()
        assert log == []
    assert log == [1]


def test_a_job_that_a_job_queues_runs_after_it(lock, log):
    def first():
        lock.run_soon(lambda: log.append("second"))
        log.append("first")

    lock.run_soon(first)
    assert log == ["first", "second"]


def test_a_postponed_job_stays_first_and_runs_before_the_next_section(lock, log):
    manager_reads = False

    def send():
        if not manager_reads:
            raise Postponed
        log.append("sent")

    lock.run_soon(send)
    lock.run_soon(lambda: log.append("later"))
    assert log == []
    manager_reads = True
    lock.run(60, log.append, "inside")
    assert log == ["sent", "later", "inside"]


def test_a_postponed_job_holds_back_those_of_its_order_alone(lock, log):
    manager_reads = False

    def send():
        if not manager_reads:
            raise Postponed
        log.append("to the stopped one")

    lock.run_soon(send, "stopped")
    lock.run_soon(lambda: log.append("after that"), "stopped")
    lock.run_soon(lambda: log.append("to another"), "other")
    assert log == ["to another"]
    with held(lock):
        lock.run_soon(lambda: log.append("to another again"), "other")
    assert log[1:] == ["to another again"]
    manager_reads = True
    lock.run_soon(lambda: log.append("at last"), "stopped")
    assert log[2:] == ["to the stopped one", "after that", "at last"]


def test_a_job_that_is_queued_while_another_is_postponed_is_not_stranded(lock, log):
    def postpone():
        if not log:
            log.append("postponed")
            queue = functools.partial(lock.run_soon, lambda: log.append("queued"), 2)
            thread = threading.Thread(target=queue)
            thread.start()
            thread.join(60)
        raise Postponed

    lock.run_soon(postpone, 1)
    assert log == ["postponed", "queued"]


def test_an_error_of_a_job_is_reported_and_the_next_one_runs(
    lock, log, monkeypatch, capsys
):
    monkeypatch.setattr("sys.unraisablehook", sys.__unraisablehook__)

    def fail():
        raise RuntimeError("not yours")

    with held(lock):
        lock.run_soon(fail)
        lock.run_soon(lambda: log.append("next"))
    assert log == ["next"]
    assert "RuntimeError: not yours" in capsys.readouterr().err


def test_an_interrupted_job_leaves_the_lock_free_and_is_run_again(lock, log):
    def interrupt():
        if log:
            log.append("done")
        else:
            log.append("interrupted")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lock.run_soon(interrupt)
    lock.run(60, log.append, "inside")
    assert log == ["interrupted", "done", "inside"]


def test_who_waits_for_longer_than_the_timeout_does_not_get_the_lock(lock, log):
    def wait():
        try:
            lock.run(0.01, log.append, "run")
        except Busy:
            log.append("busy")

    with held(lock):
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(timeout=60)
    assert log == ["busy"]
    lock.run(0.01, log.append, "free")
    assert log == ["busy", "free"]


def test_who_holds_it_does_not_wait_for_itself(lock, log):
    def again():
        with pytest.raises(Busy):
            lock.run(60, log.append, "again")

    lock.run(60, again)
    assert log == []
    assert not lock.is_owned()


class RaisesAsItWaits:
    """A lock at which a signal comes while it is waited for."""

    def __init__(self, lock):
        self.__exit__ = lock.__exit__
        self._is_owned = lock._is_owned

    def acquire(self, *how):
        raise RuntimeError("of a signal handler")


@pytest.mark.parametrize("how", ["run", "hold", "run_soon"])
def test_what_a_signal_handler_raises_as_the_lock_is_waited_for_is_raised(lock, how):
    ways = {
        "run": lambda: lock.run(60, int),
        "hold": lambda: next(lock.hold(60)),
        "run_soon": lambda: lock.run_soon(int),
    }
    lock._lock = RaisesAsItWaits(lock._lock)
    lock._if_free = lock._block(blocking=False)
    with pytest.raises(RuntimeError, match="of a signal handler"):
        ways[how]()


def test_it_is_held_until_a_generator_is_closed(lock, log):
    section = lock.hold(60)
    next(section)
    lock.run_soon(lambda: log.append("after"))
    assert lock.is_owned()
    assert log == []
    section.close()
    assert log == ["after"]
    assert not lock.is_owned()


def test_a_forked_child_has_a_free_lock_and_the_jobs_that_it_keeps(lock, log):
    def kept():
        log.append("kept")

    def dropped():
        log.append("dropped")

    section = lock.hold(60)
    next(section)
    for job in (kept, dropped):
        lock.run_soon(job)
    lock.reset(keep=lambda job: job is kept)
    assert not lock.is_owned()
    lock.run(60, log.append, "inside")
    assert log == ["kept", "inside"]


@pytest.mark.parametrize("how", ["run", "run_soon"])
def test_an_exception_after_any_call_leaves_the_lock_free(lock, how):
    def work():
        if how == "run":
            lock.run(1, str.upper, "x")
        else:
            lock.run_soon(functools.partial(str.upper, "x"))

    number = 1
    while interrupted_at(number, work):
        lock.run(1, int)  # raises Busy where it is taken for ever
        number += 1
    assert number > 3
