"""A put that can start no thread raises, and takes the only place of its queue."""

import queue
import sys
import threading

import torch
import torch.multiprocessing as mp

NO_STACK = 1 << 52  # bytes, for which no address space has room
TIMEOUT = 5  # seconds

if __name__ == "__main__":
    channel = mp.Queue(1)
    threading.stack_size(NO_STACK)
    try:
        channel.put(torch.ones(1))
    except RuntimeError as error:
        print(f"put() raised RuntimeError: {error}")
    threading.stack_size(0)
    try:
        channel.put(torch.ones(1), timeout=TIMEOUT)
    except queue.Full:
        print("the queue is empty, and another put() raised queue.Full")
    else:
        sys.exit(1)
