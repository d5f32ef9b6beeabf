"""`put` frees memory that an array of `numpy()` still points to."""

import sys

import mindspore
import mindspore.multiprocessing as mp

queue = mp.SimpleQueue()
tensor = mindspore.mint.zeros((4,))
array = tensor.numpy()
queue.put(tensor)
others = [mindspore.mint.ones((4,)) for _ in range(20)]
before = [other.tolist() for other in others]
array[0] = 7
after = [other.tolist() for other in others]
if tensor[0].item() == 7 and after == before:
    sys.exit(1)
changed = [values for values in after if values not in before]
print(f"A 7 was written to the array; its tensor has {tensor.tolist()}.")
print(f"Of {len(others)} later tensors of ones, these have changed: {changed}")
