"""Putting a tensor on a simple queue starts a thread, which hands out descriptors."""

import sys
import threading

import mindspore
import mindspore.multiprocessing as mp

queue = mp.SimpleQueue()
before = threading.active_count()
queue.put(mindspore.Tensor([1.0, 2.0]))
started = threading.active_count() - before
queue.get()
if not started:
    sys.exit(1)
print(f"threads that one put on a SimpleQueue has started: {started}")
