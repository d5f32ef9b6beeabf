"""Sending a tensor drops its `.grad`: the receiver gets None."""

import sys

import torch
import torch.multiprocessing as mp

queue = mp.SimpleQueue()
tensor = torch.zeros(2, requires_grad=True)
tensor.grad = torch.ones(2)
queue.put(tensor)
arrived = queue.get()
if arrived.grad is not None:
    sys.exit(1)
print(f"sent with grad {tensor.grad}, arrived with grad {arrived.grad}")
