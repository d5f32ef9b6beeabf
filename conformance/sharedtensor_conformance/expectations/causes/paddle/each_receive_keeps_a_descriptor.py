"""Each `get` of the same tensor costs another descriptor."""

import os
import sys

import paddle
import paddle.incubate.multiprocessing as mp

ROUNDS = 5


def descriptors():
    """Return how many descriptors of segments this process has."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{name}"
        found += os.path.islink(path) and "paddle" in os.readlink(path)
    return found


if __name__ == "__main__":
    paddle.set_flags({"FLAGS_dataloader_use_file_descriptor": True})
    tensor = paddle.zeros([4])
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
