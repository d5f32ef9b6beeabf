"""`join()` hangs after a failure if another process ignores SIGTERM."""

import os
import signal
import sys
import threading

import torch.multiprocessing as mp

LIMIT = 60
LONGER = 50  # later releases kill after 30 seconds


def work(index, ready):
    """Raise in one process when the other refuses to end."""
    if index == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ready.set()
        threading.Event().wait()
    ready.wait()
    raise LookupError(f"process {index}")


def join(context, told):
    """Join the processes; tell that what one of them raised was told."""
    try:
        context.join()
    except mp.ProcessRaisedException:
        told.set()


if __name__ == "__main__":
    told = threading.Event()
    ready = mp.get_context("spawn").Event()
    context = mp.spawn(work, (ready,), nprocs=2, join=False)
    threading.Thread(target=join, args=(context, told), daemon=True).start()
    failed, other = context.processes[1], context.pids()[0]
    failed.join(LIMIT)
    came = told.wait(LONGER)
    os.kill(other, signal.SIGKILL)
    told.wait(LIMIT)
    if came:
        sys.exit(1)
    print("one process raised, and join() waits for the one that ignores SIGTERM")
