"""A signal handler may raise what the system raises: its exception reaches the caller.

Clauses THREAD-5 and THREAD-6, which judge it of shares and sends.
"""

import errno
import os
import sys

import pytest
import sharedtensor
import sharedtensor.multiprocessing as mp
from interrupts import ANYWHERE, MOST_CALLS, interrupted_at, is_of_python
from sharedtensor import errors, segments
from sharedtensor.strategies import Resource


def send_and_receive():
    ours, theirs = mp.Pipe()
    with ours, theirs:
        ours.send([sharedtensor.arange(4), sharedtensor.arange(4)])
        theirs.recv()


def put_and_get():
    queue = mp.Queue()
    queue.put(sharedtensor.arange(4))
    queue.get()
    queue.close()
    queue.join_thread()


@pytest.fixture
def reported(monkeypatch):
    """What Python reports: exceptions in finalizers. It is not kept, and they go on."""
    found = []

    def note(unraisable):
        if not is_of_python(unraisable):
            found.append(str(unraisable.exc_value))
        unraisable.exc_value.__traceback__ = None

    monkeypatch.setattr(sys, "unraisablehook", note)
    return found


def what_comes_out(place, work, raised):
    """Return what some work raises, and whether it came as far as to that place."""
    try:
        return None, interrupted_at(place, work, ANYWHERE, raised)
    except Exception as error:
        return error, True


# What channels expect of the system, and what names do.
@pytest.mark.parametrize(
    ("strategy", "kind", "work"),
    [
        ("file_descriptor", ConnectionResetError, send_and_receive),
        ("file_descriptor", BlockingIOError, put_and_get),
        ("file_system", FileNotFoundError, put_and_get),
    ],
    indirect=["strategy"],
)
def test_exception_of_a_handler_reaches_the_caller(strategy, reported, kind, work):
    work()
    for place in range(1, MOST_CALLS):
        reported.clear()
        raised = kind(f"of a handler at place {place}")
        told, came_so_far = what_comes_out(place, work, raised)
        if not came_so_far:
            return
        assert told is raised or reported == [str(raised)]
    raise AssertionError(f"it has more than {MOST_CALLS} places")


def test_refusal_of_the_system_is_none_of_a_handler():
    for number in (errno.EMFILE, errno.ETIMEDOUT, errno.ENOENT, errno.EPIPE):
        assert not errors.is_of_handler(OSError(number, os.strerror(number)))
    with errors.ignoring(FileNotFoundError):
        os.unlink("/nowhere/at/all")
    with pytest.raises(FileNotFoundError), errors.ignoring(BlockingIOError):
        os.unlink("/nowhere/at/all")


def test_error_of_this_package_is_none_of_a_handler():
    with pytest.raises(errors.ResourceError) as caught:
        segments.seal(-1, 10)
    assert not errors.is_of_handler(caught.value)


@pytest.mark.parametrize(
    "error",
    [TimeoutError("late"), OSError("late"), TimeoutError(errno.EPERM, "late")],
    ids=["unnumbered", "bare", "of-another-class"],
)
def test_error_without_the_number_of_its_class_is_of_a_handler(error):
    with pytest.raises(type(error)) as caught, errors.ignoring(OSError):
        raise error
    assert caught.value is error


def test_exception_in_the_end_of_a_segment_that_was_not_made_is_reported(
    reported, monkeypatch
):
    """The making of the segment was interrupted, and its end is now."""
    raised = KeyboardInterrupt("of a handler")
    places = iter([raised])

    def interrupted(resource):
        for place in places:
            raise place
        assert resource.strategy

    monkeypatch.setattr("sharedtensor.strategies.release_segment", interrupted)
    resource = Resource.__new__(Resource)
    del resource
    assert reported == [str(raised)]
