"""`copy.deepcopy` of a tensor and a view of it gives each its own memory."""

import copy
import sys

import paddle

base = paddle.zeros([4])
base_copied, view_copied = copy.deepcopy([base, base[1:3]])
base_copied.fill_(5)
if view_copied.tolist() == [5, 5]:
    sys.exit(1)
print(f"the base has {base_copied.tolist()}, its view {view_copied.tolist()}")
