"""Under umask 777, `share_memory_()` makes a file that no receiver can open."""

import os
import sys

import torch
import torch.multiprocessing as mp

mp.set_sharing_strategy("file_system")
os.umask(0o777)
tensor = torch.zeros(2).share_memory_()
prefix = f"torch_{os.getpid()}_"
(name,) = (name for name in os.listdir("/dev/shm") if name.startswith(prefix))
mode = os.stat(f"/dev/shm/{name}").st_mode & 0o777
if mode == 0o600:
    sys.exit(1)
print(f"the mode of {name} is {mode:03o}: unless as root, no receiver can open it")
