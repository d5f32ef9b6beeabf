"""Sending a nested tensor copies it: the receiver sees no later writes."""

import sys

import torch
import torch.multiprocessing as mp

queue = mp.SimpleQueue()
tensor = torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)])
queue.put(tensor)
arrived = queue.get()
tensor.unbind()[0][0] = 7.0
if arrived.unbind()[0].tolist() == [7.0]:
    sys.exit(1)
print(f"the sender wrote 7.0, the receiver reads {arrived.unbind()[0].tolist()}")
