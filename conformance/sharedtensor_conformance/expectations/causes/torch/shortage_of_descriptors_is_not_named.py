"""`get` at the limit of open files raises an error that does not name the limit."""

import os
import resource
import sys

import torch
import torch.multiprocessing as mp

FREE = 2
"""Descriptors for the connection to the sender, and none for what comes over it."""


def put(tensors, received):
    """Put a tensor, and stay until it was received."""
    tensors.put(torch.ones(2))
    received.wait()


if __name__ == "__main__":
    context = mp.get_context("spawn")
    tensors, received = context.SimpleQueue(), context.Event()
    sender = context.Process(target=put, args=(tensors, received))
    sender.start()
    while tensors.empty():
        sender.join(0.01)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(highest)]
    for _ in range(FREE):
        os.close(taken.pop())
    limit = max(taken) + 1 + FREE
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        tensors.get()
        said = ""
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    received.set()
    sender.join()
    if "ancdata" not in said:
        sys.exit(1)
    print(f"a process that has no more descriptors raises {said}")
