"""A child forked while tensors wait in a queue of its parent keeps them mapped."""

import gc
import multiprocessing as mp
import sys

import torch
from tensordict import MemoryMappedTensor

WAITING = 8


def count_mapped():
    """Return how many anonymous segments this process has mapped."""
    with open("/proc/self/maps") as maps:
        return sum("/dev/shm/pym-" in line for line in maps)


def tell(pipe):
    """Tell how many segments the child has mapped, though it has no tensor."""
    gc.collect()
    pipe.send(count_mapped())


if __name__ == "__main__":
    torch.set_num_threads(1)
    context = mp.get_context("fork")
    queue = context.Queue()
    queue.put(bytes(2**20))  # more than a pipe takes, so all the others wait
    for _ in range(WAITING):
        queue.put(MemoryMappedTensor.from_tensor(torch.zeros(4)))
    here, there = context.Pipe()
    child = context.Process(target=tell, args=(there,))
    child.start()
    kept = here.recv()
    child.join()
    for _ in range(1 + WAITING):
        queue.get()
    if not kept:
        sys.exit(1)
    print(f"the child, which has no tensor, has {kept} of {WAITING} segments mapped")
