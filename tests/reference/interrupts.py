"""Exceptions of signal handlers, which can arise wherever a call comes back."""

import gc
import inspect
import multiprocessing
import sys

from holdings import descriptors, eventually

MOST_CALLS = 3000


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
        if event in places and (event == "c_return" or not is_generator(frame)):
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


def is_generator(frame):
    """Return whether it runs in steps: no handler runs as one yields or is closed."""
    return bool(frame.f_code.co_flags & inspect.CO_GENERATOR)


def each_place(work, places=COMING_BACK):
    """Interrupt `work` at each place, after one call without; yield after each."""
    work()
    for number in range(1, MOST_CALLS):
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
        is_of_logging = getattr(error.object, "__module__", None) == "logging"
        if not isinstance(error.exc_value, Interrupt) and not is_of_logging:
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


def in_a_child(function, *arguments):
    """Run a function in a process of its own: what is lost there is not ours."""
    child = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    child.start()
    child.join(120)
    ended_with = child.exitcode
    child.kill()
    assert ended_with == 0
