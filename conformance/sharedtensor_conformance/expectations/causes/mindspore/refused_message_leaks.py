"""A `put` that raises leaks a descriptor for each earlier tensor."""

import contextlib
import gc
import os
import sys

import mindspore
import mindspore.multiprocessing as mp

ROUNDS = 10


class Bad:
    """An object that cannot be pickled."""

    def __reduce__(self):
        raise ValueError("this object cannot be pickled")


def refuse(queue):
    """Send a tensor before an object that cannot be pickled."""
    with contextlib.suppress(ValueError):
        queue.put([mindspore.mint.zeros((4,)), Bad()])
    gc.collect()


queue = mp.SimpleQueue()
refuse(queue)  # the first one starts what serves all of them
before = len(os.listdir("/proc/self/fd"))
for _ in range(ROUNDS):
    refuse(queue)
left = len(os.listdir("/proc/self/fd")) - before
if left < ROUNDS:
    sys.exit(1)
print(f"{ROUNDS} refused messages left {left} descriptors")
