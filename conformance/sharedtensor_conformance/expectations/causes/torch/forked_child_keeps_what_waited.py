"""A child that is forked while messages wait in a `Queue` never releases their tensors.

The parent receives and drops all of the messages; the child never uses the queue.
"""

import gc
import sys

import torch
import torch.multiprocessing as mp

MESSAGES, BYTES = 100, 20_000


def mapped():
    """Return how many segments this process has mapped."""
    with open("/proc/self/maps") as file:
        return sum("/torch_" in line for line in file)


def look(waiting, found):
    """Say how many segments are mapped when the parent has dropped all."""
    waiting.recv()
    gc.collect()
    found.send(mapped())


context = mp.get_context("fork")
queue = context.Queue()
for _ in range(MESSAGES):  # more than the queue's pipe takes
    queue.put([torch.ones(2).share_memory_(), bytes(BYTES)])
waiting, tell = context.Pipe(duplex=False)
answer, found = context.Pipe(duplex=False)
child = context.Process(target=look, args=(waiting, found))
child.start()
for _ in range(MESSAGES):
    queue.get()
gc.collect()
left = mapped()
tell.send("all is dropped")
kept = answer.recv()
child.join()
if left or kept < MESSAGES // 2:
    sys.exit(1)
print(f"the parent has mapped {left} segments, and its child {kept}")
