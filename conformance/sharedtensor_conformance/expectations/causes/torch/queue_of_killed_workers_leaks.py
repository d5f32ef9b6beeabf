"""Under `file_system`, a queue whose workers were killed never frees its segments.

They stay as long as any process that uses the same torch_shm_manager runs.
"""

import gc
import os
import sys
import time

import torch
import torch.multiprocessing as mp

LIMIT = 30


def put_all(batches):
    """Put batches until killed."""
    while True:
        batches.put(torch.ones(2))


def segments(process):
    """Return the names of the segments that a process made."""
    prefix = f"torch_{process.pid}_"
    return [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]


def wait_until(holds, limit):
    """Wait until something holds; return whether it does."""
    deadline = time.monotonic() + limit
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return holds()


if __name__ == "__main__":
    mp.set_sharing_strategy("file_system")
    torch.ones(2).share_memory_()  # so there is a manager, which the worker uses too
    context = mp.get_context("fork")
    batches = context.Queue(2)
    worker = context.Process(target=put_all, args=(batches,), daemon=True)
    worker.start()
    batches.get()
    if not wait_until(lambda: batches.full() and not batches.empty(), LIMIT):
        sys.exit("the queue is not filled")
    worker.terminate()
    worker.join()
    batches.close()
    del batches
    gc.collect()
    if wait_until(lambda: not segments(worker), 6):
        sys.exit(1)
    left = segments(worker)
    print(f"6 seconds after the queue was dropped, {len(left)} segments of it stay")
    for name in left:
        os.unlink(f"/dev/shm/{name}")
