"""Exceptions of signal handlers, which can arise wherever a call comes back."""

import inspect
import sys


class Interrupt(BaseException):
    """What a signal handler raises."""


COMING_BACK = ("c_return", "return")
BEGINNING = ("call",)


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
