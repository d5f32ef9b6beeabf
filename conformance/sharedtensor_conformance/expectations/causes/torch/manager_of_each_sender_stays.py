"""A receiver keeps the torch_shm_manager of an exited, spawned sender running."""

import os
import sys
from contextlib import suppress

import torch
import torch.multiprocessing as mp

SENDERS = 3


def send(tensors, received):
    """Send a tensor, and exit when it has arrived."""
    mp.set_sharing_strategy("file_system")
    tensors.put(torch.zeros(3))
    received.get()


def sockets():
    """Return how many sockets this process has."""
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one that lists them has gone
            target = os.readlink(f"/proc/self/fd/{descriptor}")
            count += target.startswith("socket:")
    return count


if __name__ == "__main__":
    mp.set_sharing_strategy("file_system")
    context = mp.get_context("spawn")
    before = sockets()
    for _ in range(SENDERS):
        tensors, received = context.SimpleQueue(), context.SimpleQueue()
        process = context.Process(target=send, args=(tensors, received), daemon=True)
        process.start()
        tensors.get()  # and drop it
        received.put(None)
        process.join()
    more = sockets() - before
    if more < SENDERS:
        sys.exit(1)
    print(f"{SENDERS} senders have ended, and {more} sockets to their managers stay")
