"""Growing a tensor that its own process moved into shared memory is a crash."""

import sys

import torch
import torch.multiprocessing as mp


def grow():
    """Share a tensor and grow it: an exception would end with 0."""
    try:
        torch.zeros(4).share_memory_().resize_(100_000)
    except RuntimeError:
        sys.exit(0)


if __name__ == "__main__":
    process = mp.get_context("spawn").Process(target=grow, daemon=True)
    process.start()
    process.join(60)
    if process.exitcode == 0:
        sys.exit(1)
    print(f"the process that resized ended with {process.exitcode} (-11: SIGSEGV)")
