"""`pickle.loads` cannot read a pickled tensor of uint16, uint32 or uint64."""

import pickle
import sys

import torch

failures = []
for dtype in (torch.uint16, torch.uint32, torch.uint64):
    content = pickle.dumps(torch.tensor([1, 2, 3], dtype=dtype))
    try:
        pickle.loads(content)
    except AttributeError as error:
        failures.append(f"{dtype}: {error}")
if len(failures) < 3:
    sys.exit(1)
print("; ".join(failures))
