"""`Queue.put` returns before the tensor is in shared memory."""

import sys

import torch
import torch.multiprocessing as mp

sys.setswitchinterval(1)  # the thread that moves gets its turn when this one waits
queue = mp.Queue()
queue.put("first")  # starts the thread
queue.get()
tensor = torch.zeros(2)
queue.put(tensor)
shared = tensor.is_shared()
queue.get()
if shared:
    sys.exit(1)
print(f"when put() had returned, is_shared() was {shared}")
