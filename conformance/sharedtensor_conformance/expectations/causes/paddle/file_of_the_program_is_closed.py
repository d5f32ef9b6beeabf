"""Dropping a tensor closes the wrong file if the program closed its descriptor."""

import os
import sys
from multiprocessing.reduction import ForkingPickler

import paddle
import paddle.incubate.multiprocessing  # it registers the reducers


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


paddle.set_flags({"FLAGS_dataloader_use_file_descriptor": True})
before = descriptors()
tensor = paddle.zeros([3])
ForkingPickler.dumps(tensor)
opened = descriptors() - before
for number in opened:
    os.close(number)
files = [os.memfd_create("of-the-program") for _ in opened]
for number in files:
    os.write(number, b"mine")
del tensor
broken = [number for number in files if content(number) != b"mine"]
if not broken:
    sys.exit(1)
print(f"files of the program that are closed or written to: {broken}")
