"""`copy.deepcopy` of a negated view returns a tensor without the negative bit."""

import copy
import sys

import torch

view = torch.tensor([1 + 2j]).conj().imag
copied = copy.deepcopy(view)
if copied.is_neg():
    sys.exit(1)
print(f"negated: the view {view.is_neg()}, its copy {copied.is_neg()}")
