"""Under `file_system`, a forked child that drops a tensor deletes its parent's file."""

import os
import sys

import torch
import torch.multiprocessing as mp

inherited = []


def drop():
    """Let go of what was inherited."""
    inherited.clear()


def segments():
    """Return the names of the segments that this process made."""
    prefix = f"torch_{os.getpid()}_"
    return [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]


mp.set_sharing_strategy("file_system")
inherited.append(torch.zeros(2).share_memory_())
before = segments()
process = mp.get_context("fork").Process(target=drop, daemon=True)
process.start()
process.join()
if segments() == before:
    sys.exit(1)
print(f"the parent's tensor is alive; its name was there ({before}) and has gone")
