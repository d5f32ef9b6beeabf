"""`pickle.dumps` of a tensor and a view of it gives each its own memory."""

import pickle
import sys

import mindspore

base = mindspore.mint.zeros((4,))
base_there, view_there = pickle.loads(pickle.dumps([base, base.view((2, 2))]))
base_there[0] = 5
base_values, view_values = base_there.asnumpy(), view_there.asnumpy()
if view_values[0, 0] == 5:
    sys.exit(1)
print(f"the base has {base_values.tolist()}, its view {view_values.tolist()}")
