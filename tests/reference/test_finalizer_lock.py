"""A finalizer never waits for the lock that its thread may hold."""

import sys
import threading

import pytest
from sharedtensor.finalizers import FinalizerLock, Postponed


@pytest.fixture
def lock():
    return FinalizerLock()


@pytest.fixture
def log():
    return []


def test_a_job_runs_at_once_under_the_lock_if_nobody_holds_it(lock, log):
    lock.run_soon(lambda: log.append(lock.is_owned()))
    assert log == [True]
    assert not lock.is_owned()


def test_jobs_queued_inside_run_in_their_order_when_the_lock_is_released(lock, log):
    with lock:
        lock.run_soon(lambda: log.append("first"))
        lock.run_soon(lambda: log.append("second"))
        log.append("inside")
    assert log == ["inside", "first", "second"]


def test_a_job_of_another_thread_does_not_wait(lock, log):
    with lock:
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
    with lock:
        log.append("inside")
    assert log == ["sent", "later", "inside"]


def test_an_error_of_a_job_is_reported_and_the_next_one_runs(
    lock, log, monkeypatch, capsys
):
    monkeypatch.setattr("sys.unraisablehook", sys.__unraisablehook__)

    def fail():
        raise RuntimeError("not yours")

    with lock:
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
    with lock:
        assert log == ["interrupted", "done"]


def test_who_waits_for_longer_than_the_timeout_does_not_get_the_lock(lock, log):
    def wait():
        log.append(lock.acquire(timeout=0.01))

    with lock:
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(timeout=60)
    assert log == [False]
    assert lock.acquire(timeout=0.01)
    lock.release()


def test_a_forked_child_has_a_free_lock_and_the_jobs_that_it_keeps(lock, log):
    def kept():
        log.append("kept")

    def dropped():
        log.append("dropped")

    lock.acquire()
    for job in (kept, dropped):
        lock.run_soon(job)
    lock.reset(keep=lambda job: job is kept)
    assert not lock.is_owned()
    with lock:
        log.append("inside")
    assert log == ["kept", "inside"]
