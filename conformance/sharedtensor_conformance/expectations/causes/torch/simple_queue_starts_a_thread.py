"""`SimpleQueue.put` of a tensor starts a thread, which hands out descriptors."""

import sys
import threading

import torch
import torch.multiprocessing as mp

mp.set_sharing_strategy("file_descriptor")
queue = mp.SimpleQueue()
before = threading.active_count()
queue.put(torch.zeros(2))
started = threading.active_count() - before
queue.get()
if not started:
    sys.exit(1)
print(f"threads that one put on a SimpleQueue has started: {started}")
