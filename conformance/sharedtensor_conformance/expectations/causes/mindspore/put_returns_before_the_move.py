"""`Queue.put` returns before the tensor is in shared memory, so it moves later."""

import sys

import mindspore
import mindspore.multiprocessing as mp

sys.setswitchinterval(1)  # the thread that moves gets its turn when this one waits
queue = mp.Queue()
queue.put("first")  # starts the thread
queue.get()
tensor = mindspore.Tensor([1.0, 2.0])
queue.put(tensor)
before = tensor.data_ptr()
arrived = queue.get()
if tensor.data_ptr() == before:
    sys.exit(1)
print("the tensor has another address after put() had returned")
