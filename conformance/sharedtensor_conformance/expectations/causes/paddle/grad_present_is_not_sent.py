"""A `.grad` that is present when its tensor is sent does not arrive."""

import sys

import paddle
import paddle.incubate.multiprocessing as mp

queue = mp.SimpleQueue()
tensor = paddle.to_tensor([1.0, 2.0], stop_gradient=False)
tensor.grad = paddle.ones([2])
queue.put(tensor)
arrived = queue.get()
if arrived.grad is not None:
    sys.exit(1)
print(f"sent with grad {tensor.grad.tolist()}, arrived with grad {arrived.grad}")
