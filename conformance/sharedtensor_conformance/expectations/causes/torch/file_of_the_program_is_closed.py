"""Dropping a tensor closes the wrong file if the program closed its descriptor."""

import os
import sys

import torch
import torch.multiprocessing as mp

mp.set_sharing_strategy("file_descriptor")


def descriptors():
    """Return the open descriptors."""
    found = map(int, os.listdir("/proc/self/fd"))
    return {each for each in found if os.path.exists(f"/proc/self/fd/{each}")}


def content(number):
    """Return what a file has, None if there is none."""
    try:
        return os.pread(number, 9, 0)
    except OSError:
        return None


before = descriptors()
tensor = torch.zeros(3).share_memory_()
opened = descriptors() - before
os.closerange(min(opened), max(opened) + 1)
files = [os.memfd_create("of-the-program") for _ in opened]
for number in files:
    os.write(number, b"mine")
another = torch.zeros(3).share_memory_()
del tensor, another
broken = [number for number in files if content(number) != b"mine"]
if not broken:
    sys.exit(1)
print(f"files of the program that are closed or written to: {broken}")
