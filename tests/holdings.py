"""What this process holds: descriptors, and names of segments."""

import os

from sharedtensor_conformance.harness.kernel import process_tree


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def limit_for(room):
    """Return the limit of open files at which so many more can be opened.

    The numbers of those that are open need not be the lowest ones.
    """
    number = 0
    while room:
        try:
            os.fstat(number)
        except OSError:
            room -= 1
        number += 1
    return number


def own_names():
    """Return the names of the segments that this process has made."""
    beginning = f"sharedtensor-{os.getpid()}-"
    return [name for name in os.listdir("/dev/shm") if name.startswith(beginning)]


def eventually(condition, deadline=20.0):
    assert process_tree.wait_until(condition, deadline), "it did not come true in time"
