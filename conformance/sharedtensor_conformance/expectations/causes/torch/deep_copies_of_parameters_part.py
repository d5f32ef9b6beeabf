"""`copy.deepcopy` of a module and its `state_dict()` copies each parameter twice."""

import copy
import sys

import torch

module = torch.nn.Linear(1, 1, bias=False)
copied, state = copy.deepcopy([module, module.state_dict()])
with torch.no_grad():
    copied.weight.fill_(5)
if state["weight"].item() == 5:
    sys.exit(1)
print(f"the module has {copied.weight.item()}, its state {state['weight'].item():.3f}")
