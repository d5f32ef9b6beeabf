"""Under `file_system`, `share_memory_()` raises if the standard streams are closed."""

import os

import torch
import torch.multiprocessing as mp

mp.set_sharing_strategy("file_system")
tensor = torch.zeros(2)
output = os.dup(1)
for descriptor in range(3):
    os.close(descriptor)
try:
    tensor.share_memory_()
    said = ""
except RuntimeError as error:
    said = f"share_memory_() raised: {str(error).splitlines()[0]}"
os.write(output, said.encode())
os._exit(0 if said else 1)
