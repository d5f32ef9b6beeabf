"""A `get` that raises for want of descriptors leaks a descriptor in the sender."""

import gc
import os
import resource
import sys

import torch
import torch.multiprocessing as mp

ROUNDS = 3


def refuse(queue, answers):
    """Receive while no further descriptor can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    queue.get()
    answers.put("ready")
    for _ in range(ROUNDS):
        first_free = os.dup(0)
        os.close(first_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, hard))
        try:
            queue.get()
            answer = "received"
        except Exception:
            answer = "refused"
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        answers.put(answer)


def main():
    """Count the sender's descriptors before and after the refusals."""
    context = mp.get_context("fork")
    queue, answers = context.SimpleQueue(), context.SimpleQueue()
    child = context.Process(target=refuse, args=(queue, answers))
    child.start()
    queue.put(torch.zeros(2))
    answers.get()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    refused = 0
    for _ in range(ROUNDS):
        queue.put(torch.zeros(2))
        refused += answers.get() == "refused"
    child.join()
    gc.collect()
    left = len(os.listdir("/proc/self/fd")) - before
    if not refused or left < refused:
        sys.exit(1)
    print(f"{refused} refusals in the receiver left {left} descriptors in the sender")


if __name__ == "__main__":
    main()
