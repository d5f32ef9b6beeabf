"""Dropping a received tensor leaks its descriptor."""

import multiprocessing as mp
import os
import sys

import torch
from tensordict import MemoryMappedTensor

ROUNDS = 20


def receive(pipe):
    """Receive tensors and drop each; tell how many descriptors there are more."""
    pipe.recv()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(ROUNDS):
        pipe.send("next")
        pipe.recv()
    pipe.send(len(os.listdir("/proc/self/fd")) - before)


if __name__ == "__main__":
    context = mp.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=receive, args=(there,))
    child.start()
    here.send(MemoryMappedTensor.from_tensor(torch.zeros(4)))
    for _ in range(ROUNDS):
        here.recv()
        here.send(MemoryMappedTensor.from_tensor(torch.zeros(4)))
    more = here.recv()
    child.join()
    if more < ROUNDS:
        sys.exit(1)
    print(f"{ROUNDS} tensors received and dropped: {more} descriptors more")
