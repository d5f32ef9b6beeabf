"""`share_memory_()` frees memory that an array of `numpy()` still points to."""

import sys

import torch
import torch.multiprocessing as mp


def touch():
    """Read an array over the memory that the tensor had before it was shared."""
    tensor = torch.zeros(8 << 20)
    array = tensor.numpy()
    tensor.share_memory_()
    tensor[0] = 7
    sys.exit(0 if array[0] == 7 else 1)


if __name__ == "__main__":
    process = mp.get_context("spawn").Process(target=touch, daemon=True)
    process.start()
    process.join(60)
    if process.exitcode == 0:
        sys.exit(1)
    print(f"the process that read the array ended with {process.exitcode}")
