"""`put` of a tensor leaves views that were taken before in the old memory."""

import sys

import paddle
import paddle.incubate.multiprocessing as mp

queue = mp.SimpleQueue()
base = paddle.arange(4, dtype="float32")
view = base.view([2, 2])
queue.put(base)
arrived = queue.get()
base[0] = 10
if view[0, 0].item() == 10:
    sys.exit(1)
print(f"base {base.tolist()}, arrived {arrived.tolist()}, view {view.tolist()}")
