"""`join()` hangs if a process raises an exception with a long text."""

import sys

import torch.multiprocessing as mp

LIMIT = 30


def fail(index):
    """Raise in the child, with a text of a mebibyte."""
    raise LookupError("x" * 2**20)


if __name__ == "__main__":
    context = mp.spawn(fail, nprocs=1, join=False)
    (process,) = context.processes
    process.join(LIMIT)
    runs = process.is_alive()
    process.kill()
    process.join()
    if not runs:
        sys.exit(1)
    print(f"it raised a text of a mebibyte, and still runs after {LIMIT} seconds")
