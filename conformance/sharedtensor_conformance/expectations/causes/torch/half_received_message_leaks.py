"""A `get` that raises while unpickling leaks the later tensors of the message.

Under ``file_descriptor`` each leaks a descriptor, under ``file_system`` a segment.
"""

import contextlib
import gc
import os
import sys

import torch
import torch.multiprocessing as mp

ROUNDS = 20


def refuse():
    """Raise where the message is rebuilt."""
    raise ValueError("this object cannot be rebuilt")


class Bad:
    """An object that can be sent and cannot be received."""

    def __reduce__(self):
        return refuse, ()


def fail(queue):
    """Send a tensor after an object that cannot be received."""
    queue.put([Bad(), torch.ones(2)])
    with contextlib.suppress(ValueError):
        queue.get()
    gc.collect()


def descriptors():
    """Return the open descriptors of this process."""
    return os.listdir("/proc/self/fd")


def segments():
    """Return the names of the segments that this process made."""
    prefix = f"torch_{os.getpid()}_"
    return [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]


def growth(strategy, held):
    """Return by how much `held` has grown after so many failures."""
    mp.set_sharing_strategy(strategy)
    queue = mp.SimpleQueue()
    fail(queue)  # the first one starts what serves all of them
    before = len(held())
    for _ in range(ROUNDS):
        fail(queue)
    return len(held()) - before


left = growth("file_descriptor", descriptors), growth("file_system", segments)
for name in segments():
    os.unlink(f"/dev/shm/{name}")
if min(left) < ROUNDS:
    sys.exit(1)
print(f"{ROUNDS} failed receives left {left[0]} descriptors or {left[1]} segments")
