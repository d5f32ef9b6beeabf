"""What a forked child writes to an array that nobody has sent is seen by its parent."""

import multiprocessing as mp
import sys
from multiprocessing.managers import SharedMemoryManager

import numpy as np
from shared_ndarray2 import SharedNDArray


def write(array):
    """Write to the first element."""
    array[0] = 7


if __name__ == "__main__":
    with SharedMemoryManager() as manager:
        array = SharedNDArray.from_array(manager, np.arange(4))
        child = mp.get_context("fork").Process(target=write, args=(array,))
        child.start()
        child.join()
        found = array[0]
    if found != 7:
        sys.exit(1)
    print(f"the child wrote 7, and the parent reads {found}")
