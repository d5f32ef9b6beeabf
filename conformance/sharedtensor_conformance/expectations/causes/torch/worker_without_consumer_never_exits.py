"""A worker hangs at its exit when the consumer of its queue has been killed.

Its own reading end is open, so its queue waits for room until somebody receives.
"""

import os
import signal
import sys

import torch
import torch.multiprocessing as mp

LIMIT = 30
BATCHES = 200


def put(batches, done):
    """Put more than a pipe takes, and exit."""
    for number in range(BATCHES):
        batches.put((number, torch.ones(2), bytes(10_000)))
    done.set()


def consume(batches, begun):
    """Do something else before the first batch is received."""
    begun.set()
    signal.pause()
    batches.get()


if __name__ == "__main__":
    context = mp.get_context("spawn")
    batches = context.Queue()
    begun, done = context.Event(), context.Event()
    consumer = context.Process(target=consume, args=(batches, begun))
    worker = context.Process(target=put, args=(batches, done))
    for process in (consumer, worker):
        process.daemon = True
        process.start()
    if not (begun.wait(LIMIT) and done.wait(LIMIT)):
        sys.exit("nothing was sent")
    batches.close()
    del batches
    os.kill(consumer.pid, signal.SIGKILL)
    consumer.join()
    worker.join(10)
    hangs = worker.exitcode is None
    worker.kill()
    worker.join()
    if not hangs:
        sys.exit(1)
    print("the consumer was killed, and the worker that has put everything never exits")
