"""A finalizer never waits for the lock that its thread may hold."""

import sys
import threading

import pytest
from sharedtensor.finalizers import FinalizerLock


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
    def queue_two():
        lock.run_soon(lambda: lock.run_soon(lambda: log.append("of a job")))
        lock.run_soon(lambda: log.append("second"))
        log.append("inside")

    lock.run(queue_two)
    assert log == ["inside", "second", "of a job"]


def test_a_job_of_another_thread_does_not_wait(lock, log):
    def queue_in_a_thread():
        thread = threading.Thread(target=lock.run_soon, args=(lambda: log.append(1),))
        thread.start()
        thread.join(timeout=60)
        assert not thread.is_alive()
        assert log == []

    lock.run(queue_in_a_thread)
    assert log == [1]


def test_an_error_of_a_job_is_reported_and_the_next_one_runs(
    lock, log, monkeypatch, capsys
):
    monkeypatch.setattr("sys.unraisablehook", sys.__unraisablehook__)

    def fail():
        raise RuntimeError("not yours")

    def queue_both():
        lock.run_soon(fail)
        lock.run_soon(lambda: log.append("next"))

    lock.run(queue_both)
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
    lock.run(log.append, "inside")
    assert log == ["interrupted", "done", "inside"]


class RaisesAsItWaits:
    """A lock at which a signal comes while it is waited for."""

    def acquire(self, *how):
        raise RuntimeError("of a signal handler")

    __enter__ = acquire

    def __exit__(self, *how):
        raise AssertionError("it was not taken")

    def _is_owned(self):
        return False


@pytest.mark.parametrize("way", ["run", "run_soon"])
def test_what_a_signal_handler_raises_as_the_lock_is_waited_for_is_raised(lock, way):
    lock._lock = RaisesAsItWaits()
    with pytest.raises(RuntimeError, match="of a signal handler"):
        getattr(lock, way)(int)
