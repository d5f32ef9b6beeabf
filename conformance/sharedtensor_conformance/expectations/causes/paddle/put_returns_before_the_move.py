"""`Queue.put` returns before the tensor is in shared memory, so it moves later."""

import sys

import paddle
import paddle.incubate.multiprocessing as mp

paddle.set_flags({"FLAGS_dataloader_use_file_descriptor": True})
sys.setswitchinterval(1)  # the thread that moves gets its turn when this one waits
queue = mp.Queue()
queue.put("first")  # starts the thread
queue.get()
for _ in range(20):  # on a busy machine the thread may be faster
    tensor = paddle.zeros([2])
    queue.put(tensor)
    before = tensor.data_ptr()
    arrived = queue.get()
    if tensor.data_ptr() != before:
        break
else:
    sys.exit(1)
print("the tensor has another address after put() had returned")
