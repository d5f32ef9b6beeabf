"""`share_memory_()` that cannot map its segment raises and leaks the segment.

It leaks a descriptor under ``file_descriptor``, and a file under ``file_system``.
"""

import gc
import os
import resource
import sys

import torch
import torch.multiprocessing as mp

ELEMENTS = 1 << 26
REFUSALS = 3


def address_space():
    """Return the bytes of address space that this process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def descriptors():
    """Return the open descriptors of this process."""
    return os.listdir("/proc/self/fd")


def segments():
    """Return the names of the segments that this process made."""
    prefix = f"torch_{os.getpid()}_"
    return [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]


def growth(strategy, held):
    """Return by how much `held` has grown after so many refusals."""
    mp.set_sharing_strategy(strategy)
    torch.zeros(2).share_memory_()
    tensors = [torch.empty(ELEMENTS) for _ in range(REFUSALS)]
    gc.collect()
    before = len(held())
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (address_space() + (1 << 20), hard))
    refusals = 0
    for tensor in tensors:
        try:
            tensor.share_memory_()
        except RuntimeError:
            refusals += 1
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    del tensors, tensor
    gc.collect()
    return len(held()) - before if refusals == REFUSALS else 0


left = growth("file_descriptor", descriptors), growth("file_system", segments)
for name in segments():
    os.unlink(f"/dev/shm/{name}")
if min(left) < REFUSALS:
    sys.exit(1)
print(f"{REFUSALS} refusals left {left[0]} descriptors or {left[1]} segments")
