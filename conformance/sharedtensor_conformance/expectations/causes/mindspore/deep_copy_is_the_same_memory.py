"""`copy.deepcopy` of a tensor shares the memory of the original."""

import copy
import sys

import mindspore

tensor = mindspore.mint.zeros((3,))
made = copy.deepcopy(tensor)
made[0] = 5
found = tensor.asnumpy().tolist()
if found != [5, 0, 0]:
    sys.exit(1)
print(f"a write to the copy made the tensor {found}")
