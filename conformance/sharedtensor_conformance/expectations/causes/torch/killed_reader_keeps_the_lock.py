"""Killing a process that waits in `get` blocks all other readers of the queue."""

import queue
import sys
import time

import torch
import torch.multiprocessing as mp

LIMIT = 30


def wait(tensors):
    """Wait for a message."""
    tensors.get()


def wait_until_locked(tensors):
    """Wait until somebody reads from the queue."""
    deadline = time.monotonic() + LIMIT
    while tensors._rlock.acquire(block=False):
        tensors._rlock.release()
        if time.monotonic() > deadline:
            sys.exit("the reader did not begin to wait")
        time.sleep(0.01)


if __name__ == "__main__":
    context = mp.get_context("spawn")
    tensors = context.Queue()
    process = context.Process(target=wait, args=(tensors,), daemon=True)
    process.start()
    wait_until_locked(tensors)
    process.kill()
    process.join()
    tensors.put(torch.ones(2))
    try:
        tensors.get(timeout=3)
    except queue.Empty:
        print("the reader was killed, and nobody receives the next message")
    else:
        sys.exit(1)
