"""Sending a tensor without elements loses its shape and dtype."""

import sys

import paddle
import paddle.incubate.multiprocessing as mp

queue = mp.SimpleQueue()
empty = paddle.zeros([3, 0, 2], dtype="int32")
queue.put(empty)
arrived = queue.get()
if arrived.shape == empty.shape and arrived.dtype == empty.dtype:
    sys.exit(1)
print(f"sent {empty.shape} {empty.dtype}, arrived {arrived.shape} {arrived.dtype}")
