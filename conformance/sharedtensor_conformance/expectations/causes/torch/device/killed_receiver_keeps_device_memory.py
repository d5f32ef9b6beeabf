"""Killing the receiver of a CUDA tensor leaks its memory in the sender.

A receiver that drops the tensor decrements a reference count; a killed one never does.
"""

import sys
import time

import torch
import torch.multiprocessing as mp

LIMIT = 60
NBYTES = 64 << 20
GRACE = 3


def hold(queue, pipe):
    """Receive a tensor, say so, and wait to be killed."""
    tensor = queue.get()
    pipe.send(tensor.nbytes)
    time.sleep(LIMIT)


def reserved_at_the_end():
    """Return the bytes that stay reserved although everything was dropped."""
    deadline = time.monotonic() + GRACE
    while torch.cuda.memory_reserved() and time.monotonic() < deadline:
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def main():
    """Kill a process that holds a tensor, and drop the tensor."""
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    here, there = context.Pipe()
    process = context.Process(target=hold, args=(queue, there))
    process.start()
    tensor = torch.zeros(NBYTES, dtype=torch.uint8, device="cuda")
    queue.put(tensor)
    if not here.poll(LIMIT):
        raise TimeoutError("the receiver did not answer")
    process.kill()
    process.join()
    del tensor
    if reserved_at_the_end() < NBYTES:
        sys.exit(1)
    print(f"reserved {GRACE} s after the receiver was killed: {NBYTES >> 20} MiB")


if __name__ == "__main__":
    main()
