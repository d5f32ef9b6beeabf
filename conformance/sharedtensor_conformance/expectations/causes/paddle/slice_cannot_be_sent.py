"""`put` of a slice with an offset into its storage raises ValueError."""

import sys

import paddle
import paddle.incubate.multiprocessing as mp

queue = mp.SimpleQueue()
base = paddle.arange(24, dtype="float32")
part = base[4:8]
try:
    queue.put(part)
except ValueError as error:
    print(f"put() raised: {str(error).strip().splitlines()[-1][:70]}")
else:
    sys.exit(1)
