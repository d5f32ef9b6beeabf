"""A child forked while arrays wait in a queue of its parent keeps them mapped."""

import gc
import multiprocessing as mp
import sys
from multiprocessing.managers import SharedMemoryManager

import numpy as np
from shared_ndarray2 import SharedNDArray

WAITING = 8


def count_mapped():
    """Return how many segments this process has mapped."""
    with open("/proc/self/maps") as maps:
        return sum("/dev/shm/psm_" in line for line in maps)


def tell(pipe):
    """Tell how many segments the child has mapped, though it has no array."""
    gc.collect()
    pipe.send(count_mapped())


if __name__ == "__main__":
    context = mp.get_context("fork")
    with SharedMemoryManager() as manager:
        queue = context.Queue()
        queue.put(bytes(2**20))  # more than a pipe takes, so all the others wait
        for _ in range(WAITING):
            queue.put(SharedNDArray.from_array(manager, np.arange(4)))
        here, there = context.Pipe()
        child = context.Process(target=tell, args=(there,))
        child.start()
        kept = here.recv()
        child.join()
        for _ in range(1 + WAITING):
            queue.get()
    if not kept:
        sys.exit(1)
    print(f"the child, which has no array, has {kept} of {WAITING} segments mapped")
