"""A NumPy array over a tensor does not share with it once the tensor has been sent."""

import sys

import mindspore
import mindspore.multiprocessing as mp

queue = mp.SimpleQueue()
tensor = mindspore.mint.zeros((4,))
array = tensor.numpy()
tensor[0] = 1
assert array[0] == 1, "the array shares memory with the tensor before it is sent"
queue.put(tensor)
arrived = queue.get()
tensor[0] = 2
if array[0] == 2:
    sys.exit(1)
print(f"tensor {tensor.tolist()}, arrived {arrived.tolist()}, array {array.tolist()}")
