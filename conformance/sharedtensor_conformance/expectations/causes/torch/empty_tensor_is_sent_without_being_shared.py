"""Sending a tensor without elements does not share it: `is_shared()` is False."""

import sys

import torch
import torch.multiprocessing as mp

mp.set_sharing_strategy("file_descriptor")
queue = mp.SimpleQueue()
tensor = torch.empty(0)
queue.put(tensor)
arrived = queue.get()
found = tensor.is_shared(), arrived.is_shared()
if all(found):
    sys.exit(1)
asked = torch.empty(0).share_memory_().is_shared()
print(f"is_shared() of the sender's and the receiver's: {found}; by request: {asked}")
