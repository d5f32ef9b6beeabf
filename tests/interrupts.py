"""Exceptions of signal handlers, which can arise wherever a call comes back."""

import functools
import gc
import inspect
import multiprocessing
import sys
from multiprocessing import resource_tracker
from pathlib import Path

import sharedtensor
from holdings import descriptors, eventually

MOST_CALLS = 3000
OURS = str(Path(sharedtensor.__file__).parent)


class Interrupt(BaseException):
    """What a signal handler raises."""


COMING_BACK = ("c_return", "return")
BEGINNING = ("call",)
ANYWHERE = (*BEGINNING, *COMING_BACK)


def interrupted_at(calls, work, places=COMING_BACK, raised=Interrupt):
    """Call `work`, and raise when it comes back from its call of that number.

    That is where the interpreter runs the handlers of signals, and where a function of
    Python begins: `places` says which. Return whether it came so far, also where the
    exception was reported and not raised, as it is in finalizers and in hooks. An
    exception to be `raised` that is no `Interrupt` comes out.
    """
    left = calls

    def back(frame, event, called):
        nonlocal left
        if event not in places or is_left_out(frame, event, called):
            return
        if event == "c_return" or not is_generator(frame):
            left -= 1
            if left == 0:
                sys.setprofile(None)
                raise raised

    sys.setprofile(back)
    try:
        work()
    except Interrupt:
        pass
    finally:
        sys.setprofile(None)
    return left <= 0


def is_left_out(frame, event, called):
    """Return whether an exception from here does not come out, or is of the test.

    Since Python 3.14 an exception can arise between `__enter__` and the block. Locks of
    `threading`, `logging` and the resource tracker stay taken then. The tracker also
    takes each `OSError` for one of the pipe that it writes to, and writes again. The
    hook of a test that notes what Python reports runs in the middle of the work.
    """
    file = frame.f_code.co_filename
    enters = event == "c_return" and called.__name__ == "__enter__"
    of_a_lock = enters and not file.startswith(OURS)
    of_the_tracker = file == resource_tracker.__file__
    of_python = sys.version_info >= (3, 14) and (of_a_lock or of_the_tracker)
    hook = getattr(sys.unraisablehook, "__code__", None)
    return of_python or frame.f_code is hook or file == __file__


def is_generator(frame):
    """Return whether it runs in steps: no handler runs as one yields or is closed."""
    return bool(frame.f_code.co_flags & inspect.CO_GENERATOR)


def is_of_python(error):
    """Return whether the standard library failed by itself where it was interrupted.

    `logging` fails in its hooks of a fork, and a `BytesIO` as it is finalized with a
    view on it, which Python reports since 3.14.
    """
    said = f"{error.err_msg} {error.object!r}"
    of_logging = getattr(error.object, "__module__", None) == "logging"
    of_its_hook = of_logging or "function _afterFork" in said
    return of_its_hook or "<_io.BytesIO object" in said


def each_place(work, places=COMING_BACK, prepare=int):
    """Interrupt `work` at each place, after one call without; yield after each.

    `prepare` is called before `work`, and is not interrupted.
    """
    prepare()
    work()
    for number in range(1, MOST_CALLS):
        prepare()
        if not interrupted_at(number, work, places):
            return
        gc.collect()
        yield number
    raise AssertionError(f"it makes more than {MOST_CALLS} calls")


def be_interrupted(work, after, places=COMING_BACK):
    """Interrupt some work at each place, in a process of its own; do `after` each time.

    No descriptor is lost, and nothing is reported but the interrupts of finalizers.
    """
    raised = []

    def note(error):
        if not isinstance(error.exc_value, Interrupt) and not is_of_python(error):
            raised.append(error.exc_value)

    sys.unraisablehook = note
    work()
    gc.collect()
    number, before = 0, descriptors()
    for place in each_place(work, places):
        after()
        number = place
    gc.collect()
    assert raised == []
    assert number > 2
    eventually(lambda: descriptors() <= before)  # a thread may write still


def in_a_child(test):
    """Run a test in a process of its own: what is lost there is not ours."""

    @functools.wraps(test)
    def run(**given):
        fork = multiprocessing.get_context("fork")
        child = fork.Process(target=test, kwargs=given)
        child.start()
        child.join(120)
        ended_with = child.exitcode
        child.kill()
        assert ended_with == 0

    return run
