"""`MemoryMappedTensor.from_tensor` of a tensor without elements raises ValueError."""

import sys

import torch
from tensordict import MemoryMappedTensor

try:
    MemoryMappedTensor.from_tensor(torch.zeros(3, 0, 2))
except ValueError as error:
    print(f"{type(error).__name__}: {error}")
else:
    sys.exit(1)
