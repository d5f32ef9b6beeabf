"""A CUDA tensor in a message that cannot be pickled is never freed.

The reducer increments the reference count for the receiver before the whole message is
pickled. If pickling another object raises, nothing decrements the count.
"""

import pickle
import sys
import time

import torch
import torch.multiprocessing as mp

NBYTES = 64 << 20
GRACE = 3


def reserved_at_the_end():
    """Return the bytes that stay reserved although everything was dropped."""
    deadline = time.monotonic() + GRACE
    while torch.cuda.memory_reserved() and time.monotonic() < deadline:
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def main():
    """Send a tensor beside a function that cannot be pickled, and drop the tensor."""
    queue = mp.get_context("spawn").SimpleQueue()
    tensor = torch.zeros(NBYTES, dtype=torch.uint8, device="cuda")
    try:
        queue.put([tensor, lambda: None])
    except (pickle.PicklingError, AttributeError) as error:
        refusal = type(error).__name__
    else:
        raise AssertionError("nothing was refused")
    del tensor
    if reserved_at_the_end() < NBYTES:
        sys.exit(1)
    print(f"reserved {GRACE} s after a {refusal}: {NBYTES >> 20} MiB")


if __name__ == "__main__":
    main()
