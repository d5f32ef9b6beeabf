"""`copy.copy` of a tensor copies its memory."""

import copy
import sys

import mindspore

tensor = mindspore.mint.zeros((3,))
made = copy.copy(tensor)
made[0] = 5
values, copied = tensor.asnumpy().tolist(), made.asnumpy().tolist()
if values == copied:
    sys.exit(1)
print(f"after a write to the copy it has {copied}, and the tensor {values}")
