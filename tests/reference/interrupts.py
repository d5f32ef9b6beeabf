"""Exceptions of signal handlers, which can arise wherever a call comes back."""

import sys


class Interrupt(BaseException):
    """What a signal handler raises."""


def interrupted_at(calls, work):
    """Call `work`, and raise when it comes back from its call of that number.

    That is where the interpreter runs the handlers of signals. Return whether it came
    so far, though a finalizer in which that is may have kept the exception to itself.
    """
    left = calls

    def back(frame, event, called):
        nonlocal left
        if event in ("c_return", "return"):
            left -= 1
            if left == 0:
                sys.setprofile(None)
                raise Interrupt

    sys.setprofile(back)
    try:
        work()
    except Interrupt:
        pass
    finally:
        sys.setprofile(None)
    return left <= 0
