"""Putting a tensor on a simple queue starts a thread, which hands out descriptors."""

import sys
import threading

import paddle
import paddle.incubate.multiprocessing as mp

paddle.set_flags({"FLAGS_dataloader_use_file_descriptor": True})
queue = mp.SimpleQueue()
before = threading.active_count()
queue.put(paddle.zeros([2]))
started = threading.active_count() - before
queue.get()
if not started:
    sys.exit(1)
print(f"threads that one put on a SimpleQueue has started: {started}")
