"""If a receiver cannot open a CUDA tensor, the sender never frees its memory.

The receiver has an empty CUDA_VISIBLE_DEVICES. A receiver decrements the reference
count when it drops the tensor; this one never gets a tensor to drop.
"""

import os
import sys
import time

import torch
import torch.multiprocessing as mp

LIMIT = 60
NBYTES = 64 << 20
GRACE = 3


def refuse(queue, pipe):
    """Receive a tensor on a device that this process does not see."""
    try:
        queue.get()
    except RuntimeError as error:
        pipe.send(type(error).__name__)
    else:
        pipe.send("")


def reserved_at_the_end():
    """Return the bytes that stay reserved although everything was dropped."""
    deadline = time.monotonic() + GRACE
    while torch.cuda.memory_reserved() and time.monotonic() < deadline:
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def main():
    """Send a tensor to a process that sees no device, and drop it."""
    tensor = torch.zeros(NBYTES, dtype=torch.uint8, device="cuda")
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    here, there = context.Pipe()
    process = context.Process(target=refuse, args=(queue, there))
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    process.start()
    queue.put(tensor)
    if not here.poll(LIMIT):
        raise TimeoutError("the receiver did not answer")
    refusal = here.recv()
    process.join()
    if not refusal:
        raise AssertionError("the receiver has opened it")
    del tensor
    if reserved_at_the_end() < NBYTES:
        sys.exit(1)
    print(f"reserved {GRACE} s after a {refusal} in the receiver: {NBYTES >> 20} MiB")


if __name__ == "__main__":
    main()
