"""`pickle.dumps` of a tensor and a view of it gives each its own memory."""

import pickle
import sys

import torch

base = torch.zeros(4)
base_there, view_there = pickle.loads(pickle.dumps([base, base[1:3]]))
base_there.fill_(5)
if view_there.tolist() == [5, 5]:
    sys.exit(1)
print(
    f"the base has {base_there.tolist()}, the view of its middle {view_there.tolist()}"
)
