"""`share_memory_()` succeeds in a full `/dev/shm`; the next write dies of SIGBUS.

The program writes nothing, since that would fill /dev/shm for all processes.
"""

import os
import sys

import torch
import torch.multiprocessing as mp

shm = os.statvfs("/dev/shm")
size = shm.f_blocks * shm.f_frsize + 4096
for strategy in ("file_descriptor", "file_system"):
    mp.set_sharing_strategy(strategy)
    try:
        storage = torch.UntypedStorage._new_shared(size)
    except RuntimeError:
        sys.exit(1)
    if storage.nbytes() != size:
        sys.exit(1)
    del storage
print(f"segments of {size} bytes, and /dev/shm can have {size - 4096}")
