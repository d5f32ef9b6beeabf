"""`ForkingPickler.dumps` leaks a descriptor if the bytes are never loaded."""

import os
import sys
from multiprocessing.reduction import ForkingPickler

import mindspore
import mindspore.multiprocessing  # it registers the reducers

COUNT = 10


def pickle_and_drop():
    """Pickle tensors, and drop tensors and bytes."""
    for _ in range(COUNT):
        ForkingPickler.dumps(mindspore.mint.zeros((4,)))


pickle_and_drop()  # the first one starts what serves all of them
before = len(os.listdir("/proc/self/fd"))
pickle_and_drop()
left = len(os.listdir("/proc/self/fd")) - before
if left < COUNT:
    sys.exit(1)
print(f"{COUNT} dropped tensors: {left} descriptors are left")
