"""Under `file_system`, `share_memory_()` that raises leaves a file in `/dev/shm`."""

import os
import resource
import sys

import torch
import torch.multiprocessing as mp

mp.set_sharing_strategy("file_system")
torch.zeros(2).share_memory_()  # starts the manager
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
refusals = 0
for _ in range(3):
    try:
        torch.zeros(4096).share_memory_()
    except RuntimeError:
        refusals += 1
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
prefix = f"torch_{os.getpid()}_"
left = [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]
for name in left:
    os.unlink(f"/dev/shm/{name}")
if not refusals or len(left) < refusals:
    sys.exit(1)
print(f"{refusals} refusals left {len(left)} files")
