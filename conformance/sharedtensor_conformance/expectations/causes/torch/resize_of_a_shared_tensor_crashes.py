"""`resize_()` of a shared tensor crashes the process that shared it."""

import sys

import torch
import torch.multiprocessing as mp


def grow(begin):
    """Share a tensor and grow it from there: an exception would end with 0."""
    try:
        torch.zeros(4).share_memory_()[begin:].resize_(100_000)
    except RuntimeError:
        sys.exit(0)


if __name__ == "__main__":
    for begin in (0, 2):
        process = mp.get_context("spawn").Process(target=grow, args=(begin,))
        process.start()
        process.join(60)
        if process.exitcode == 0:
            sys.exit(1)
        print(f"the process that resized ended with {process.exitcode} (-11: SIGSEGV)")
