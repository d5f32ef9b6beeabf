"""Sending a tensor without elements loses its shape."""

import sys

import mindspore
import mindspore.multiprocessing as mp

queue = mp.SimpleQueue()
empty = mindspore.mint.zeros((3, 0, 2))
queue.put(empty)
arrived = queue.get()
if arrived.shape == empty.shape:
    sys.exit(1)
print(f"sent with shape {empty.shape}, arrived with shape {arrived.shape}")
