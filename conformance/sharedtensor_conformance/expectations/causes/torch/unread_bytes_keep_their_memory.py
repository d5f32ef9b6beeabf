"""`ForkingPickler.dumps` leaks the tensor's memory if the bytes are never loaded."""

import os
import sys
from multiprocessing.reduction import ForkingPickler

import torch
import torch.multiprocessing as mp

mp.set_sharing_strategy("file_descriptor")


def segments():
    """Return how many descriptors of segments are open."""
    places = [f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")]
    links = [os.readlink(place) for place in places if os.path.exists(place)]
    return sum("torch_" in link for link in links)


for _ in range(10):
    tensor = torch.zeros(5)
    ForkingPickler.dumps(tensor)
    del tensor
left = segments()
if not left:
    sys.exit(1)
print(f"descriptors of dropped tensors that are left: {left}")
