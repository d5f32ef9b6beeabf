"""Interrupting `spawn` does not terminate the processes that it has started."""

import multiprocessing
import os
import signal
import sys
import threading
import time

import torch.multiprocessing as mp


def work(index, begun):
    """Say that it has begun, and work for some seconds."""
    begun.release()
    time.sleep(5)


def interrupt(begun, count):
    """Send this process SIGINT when all of the others work."""
    for _ in range(count):
        begun.acquire()
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # where it is ignored
    begun = mp.get_context("spawn").Semaphore(0)
    threading.Thread(target=interrupt, args=(begun, 2)).start()
    try:
        mp.spawn(work, (begun,), nprocs=2)
    except KeyboardInterrupt:
        left = multiprocessing.active_children()
    else:
        sys.exit("it was not interrupted")
    if not left:
        sys.exit(1)
    print(f"the call has raised, nobody has their context, and {len(left)} work on")
    for process in left:
        process.kill()
