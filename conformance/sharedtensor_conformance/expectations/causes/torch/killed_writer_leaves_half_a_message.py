"""Killing a process in `put` blocks all readers and writers of the queue.

The reader waits forever for the other half, and the other writers for the lock.
"""

import os
import signal
import sys
import time

import torch
import torch.multiprocessing as mp

LIMIT = 30
SIZE = 1 << 20
"""Bytes: more than a pipe takes."""


def put(messages, begun, number, size):
    """Put one message."""
    begun.set()
    messages.put((number, torch.ones(2), bytes(size)))


def get_all(messages, begun):
    """Receive until the message of the second process comes."""
    begun.set()
    while messages.get()[0] != 2:
        pass


def wait_until_begun(messages):
    """Wait until a part of a message is there."""
    deadline = time.monotonic() + LIMIT
    while messages.empty():
        if time.monotonic() > deadline:
            sys.exit("nothing was put")
        time.sleep(0.01)


if __name__ == "__main__":
    context = mp.get_context("spawn")
    messages = context.SimpleQueue()
    begun = [context.Event() for _ in range(3)]
    first = context.Process(target=put, args=(messages, begun[0], 1, SIZE))
    first.start()
    wait_until_begun(messages)
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    second = context.Process(target=put, args=(messages, begun[1], 2, 0))
    reader = context.Process(target=get_all, args=(messages, begun[2]))
    second.start()
    reader.start()
    if not all(one.wait(LIMIT) for one in begun):
        sys.exit("a process did not begin")
    reader.join(10)
    hangs = reader.exitcode is None
    for process in (reader, second):
        process.kill()
        process.join()
    if not hangs:
        sys.exit(1)
    print("a writer was killed, and nobody receives the message of another")
