"""A tensor that is received often costs a descriptor or more for each time."""

import os
import sys

import mindspore
import mindspore.multiprocessing as mp

ROUNDS = 5


def descriptors():
    """Return how many descriptors of segments this process has."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{name}"
        found += os.path.islink(path) and "mindspore" in os.readlink(path)
    return found


if __name__ == "__main__":
    tensor = mindspore.Tensor([1.0, 2.0])
    queue = mp.SimpleQueue()
    queue.put(tensor)
    held = [queue.get()]
    before = descriptors()
    for _ in range(ROUNDS):
        queue.put(tensor)
        held.append(queue.get())
    more = descriptors() - before
    if more < ROUNDS:
        sys.exit(1)
    print(f"{ROUNDS} more receives of one tensor cost {more} more descriptors")
