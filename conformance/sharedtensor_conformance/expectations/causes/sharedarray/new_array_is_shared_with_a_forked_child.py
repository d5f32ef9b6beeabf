"""What a forked child writes to an array that nobody has sent is seen by its parent."""

import multiprocessing as mp
import os
import sys

import SharedArray as sa


def write(array):
    """Write to the first element."""
    array[0] = 7


if __name__ == "__main__":
    name = f"shm://sharedarray_{os.getpid()}_0"
    array = sa.create(name, 4)
    sa.delete(name)  # the mapping stays
    child = mp.get_context("fork").Process(target=write, args=(array,))
    child.start()
    child.join()
    if array[0] != 7:
        sys.exit(1)
    print(f"the child wrote 7, and the parent reads {array[0]:g}")
