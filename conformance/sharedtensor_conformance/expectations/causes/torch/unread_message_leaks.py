"""Closing a queue leaks a descriptor or segment per unread tensor.

It is a descriptor under ``file_descriptor`` and a segment under ``file_system``.
"""

import gc
import os
import sys

import torch
import torch.multiprocessing as mp

ROUNDS = 20


def lose():
    """Put a message on a queue, and let both go."""
    mp.SimpleQueue().put(torch.ones(2))
    gc.collect()


def descriptors():
    """Return the open descriptors of this process."""
    return os.listdir("/proc/self/fd")


def segments():
    """Return the names of the segments that this process made."""
    prefix = f"torch_{os.getpid()}_"
    return [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]


def growth(strategy, held):
    """Return by how much `held` has grown after so many lost messages."""
    mp.set_sharing_strategy(strategy)
    lose()  # the first one starts what serves all of them
    before = len(held())
    for _ in range(ROUNDS):
        lose()
    return len(held()) - before


left = growth("file_descriptor", descriptors), growth("file_system", segments)
for name in segments():
    os.unlink(f"/dev/shm/{name}")
if min(left) < ROUNDS:
    sys.exit(1)
print(f"{ROUNDS} unread messages left {left[0]} descriptors or {left[1]} segments")
