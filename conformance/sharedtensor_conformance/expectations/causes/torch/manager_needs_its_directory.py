"""Under `file_system`, `share_memory_()` raises if `TMPDIR` does not exist."""

import os
import sys

import torch
import torch.multiprocessing as mp

os.environ["TMPDIR"] = f"/tmp/gone-{os.getpid()}"
mp.set_sharing_strategy("file_system")
try:
    torch.zeros(2).share_memory_()
except RuntimeError as error:
    print(f"share_memory_() raised: {str(error).splitlines()[0]}")
else:
    sys.exit(1)
