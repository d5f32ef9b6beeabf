"""Each `get` of the same tensor maps its memory at another address."""

import sys

import paddle
import paddle.incubate.multiprocessing as mp

queue = mp.SimpleQueue()
tensor = paddle.zeros([4])
for _ in range(2):
    queue.put(tensor)
first, second = queue.get(), queue.get()
addresses = {tensor.data_ptr(), first.data_ptr(), second.data_ptr()}
first[0] = 7
assert tensor[0].item() == second[0].item() == 7, "it is one memory"
if len(addresses) == 1:
    sys.exit(1)
print(f"one memory is mapped at {len(addresses)} addresses in one process")
