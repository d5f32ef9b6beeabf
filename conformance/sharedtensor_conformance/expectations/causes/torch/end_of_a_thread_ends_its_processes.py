"""`spawn` in a thread: the processes die with the thread, and `join()` returns True."""

import signal
import sys
import threading
import time

import torch.multiprocessing as mp


def work(index, begun, done):
    """Work for some seconds, which the signal cuts short."""
    begun.release()
    time.sleep(5)
    done.put(index)


def start(started, begun, done):
    """Start a process, and return when it works."""
    started.append(mp.spawn(work, (begun, done), nprocs=1, join=False))
    begun.acquire()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # where it is ignored
    context = mp.get_context("spawn")
    begun, done, started = context.Semaphore(0), context.SimpleQueue(), []
    thread = threading.Thread(target=start, args=(started, begun, done))
    thread.start()
    thread.join()
    began = time.monotonic()
    all_is_well = started[0].join()
    if not done.empty():
        sys.exit(1)
    if time.monotonic() - began > 3:
        sys.exit("it was not the end of the thread")
    print(f"no work was done, and join() returned {all_is_well}")
