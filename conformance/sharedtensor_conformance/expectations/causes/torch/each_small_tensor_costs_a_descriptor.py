"""Each of many small tensors in one message costs a descriptor."""

import os
import sys

import torch
import torch.multiprocessing as mp

TENSORS = 100
FEW = 16


def open_descriptors():
    """Return how many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


mp.set_sharing_strategy("file_descriptor")
queue = mp.SimpleQueue()
queue.put([torch.zeros(2)])  # starts what is there once
queue.get()
tensors = [torch.zeros(2) for _ in range(TENSORS)]
before = open_descriptors()
queue.put(tensors)
arrived = queue.get()
more = open_descriptors() - before
if more <= FEW:
    sys.exit(1)
print(f"{TENSORS} tensors of {len(tensors[0])} elements cost {more} descriptors")
