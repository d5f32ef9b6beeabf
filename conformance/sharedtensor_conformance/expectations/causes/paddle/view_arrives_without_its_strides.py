"""Sending a strided view loses the strides, and corrupts the sender's view as well."""

import sys

import paddle
import paddle.incubate.multiprocessing as mp

queue = mp.SimpleQueue()
base = paddle.arange(24, dtype="float32")
every_third = paddle.as_strided(base, [8], [3])
before = every_third.tolist()
queue.put(every_third)
arrived = queue.get().tolist()
if arrived == before:
    sys.exit(1)
print(f"sent {before}, arrived {arrived}; the sender reads {every_third.tolist()} now")
