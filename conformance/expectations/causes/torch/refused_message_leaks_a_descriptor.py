"""A message that is refused keeps a descriptor of each tensor that came before."""

import gc
import os
import sys

import torch
import torch.multiprocessing as mp

ROUNDS = 20


def refused(queue, non_leaf):
    """Send a good tensor together with one that is refused."""
    try:
        queue.put([torch.ones(2), non_leaf])
    except RuntimeError:
        gc.collect()


def descriptors():
    """Count the open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


queue = mp.SimpleQueue()
non_leaf = torch.zeros(2, requires_grad=True) * 2
refused(queue, non_leaf)  # the first one starts a thread with a socket
before = descriptors()
for _ in range(ROUNDS):
    refused(queue, non_leaf)
grown = descriptors() - before
if grown < ROUNDS:
    sys.exit(1)
print(f"{ROUNDS} refused messages left {grown} descriptors open")
