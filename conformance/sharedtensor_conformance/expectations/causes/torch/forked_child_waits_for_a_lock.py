"""`share_memory_()` hangs in a child forked while another thread shared a tensor."""

import sys
import threading
import time

import torch
import torch.multiprocessing as mp

FORKING = 60  # seconds: the first fork mostly shows it
LIMIT = 5
THREADS = 8  # so that nearly always one of them holds the lock


def share_one():
    """Move a new tensor into shared memory."""
    torch.ones(2).share_memory_()


def share_until(stopped):
    """Share one tensor after the other until told to stop."""
    while not stopped.is_set():
        share_one()


def forked_child_hangs(context):
    """Fork a child that shares one tensor; return whether it does not end."""
    child = context.Process(target=share_one)
    child.start()
    child.join(LIMIT)
    hangs = child.exitcode is None
    child.kill()
    child.join()
    return hangs


if __name__ == "__main__":
    context = mp.get_context("fork")
    share_one()
    sys.setswitchinterval(1e-6)
    stopped = threading.Event()
    sharing = [
        threading.Thread(target=share_until, args=(stopped,)) for _ in range(THREADS)
    ]
    for thread in sharing:
        thread.start()
    end = time.monotonic() + FORKING
    hangs = False
    while not hangs and time.monotonic() < end:
        hangs = forked_child_hangs(context)
    stopped.set()
    for thread in sharing:
        thread.join()
    if not hangs:
        sys.exit(1)
    print("a child that was forked while a thread shared does not end")
