"""Sending `x.conj()` loses the conjugation: the receiver gets the values of `x`."""

import sys

import torch
import torch.multiprocessing as mp

queue = mp.SimpleQueue()
view = torch.tensor([1 + 2j]).conj()
queue.put(view)
arrived = queue.get()
if arrived.tolist() == view.tolist():
    sys.exit(1)
print(f"sent {view.tolist()}, arrived {arrived.tolist()}")
