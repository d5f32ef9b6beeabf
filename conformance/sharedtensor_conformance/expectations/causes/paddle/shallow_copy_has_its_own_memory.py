"""`copy.copy` of a tensor copies its memory."""

import copy
import sys

import paddle

tensor = paddle.zeros([3])
made = copy.copy(tensor)
made[0] = 5
values, copied = tensor.numpy().tolist(), made.numpy().tolist()
if values == copied:
    sys.exit(1)
print(f"after a write to the copy it has {copied}, and the tensor {values}")
