"""`share_memory_()` starts torch_shm_manager, which keeps the caller's pipes open."""

import os
import select
import sys

import torch
import torch.multiprocessing as mp

read_end, write_end = os.pipe()
os.set_inheritable(write_end, True)
mp.set_sharing_strategy("file_system")
tensor = torch.zeros(2).share_memory_()  # starts the manager
os.close(write_end)
ended, _, _ = select.select([read_end], [], [], 1)
if ended:
    sys.exit(1)
print("the writer has closed its pipe, and the reader still waits: the manager has it")
