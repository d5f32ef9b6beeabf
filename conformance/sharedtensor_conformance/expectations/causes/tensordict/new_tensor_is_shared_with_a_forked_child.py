"""What a forked child writes to a tensor that nobody has sent is seen by its parent."""

import multiprocessing as mp
import sys

import torch
from tensordict import MemoryMappedTensor


def write(tensor):
    """Write to the first element."""
    tensor[0] = 7


if __name__ == "__main__":
    torch.set_num_threads(1)
    tensor = MemoryMappedTensor.from_tensor(torch.zeros(4))
    child = mp.get_context("fork").Process(target=write, args=(tensor,))
    child.start()
    child.join()
    if tensor[0] != 7:
        sys.exit(1)
    print(f"the child wrote 7, and the parent reads {tensor[0].item():g}")
