"""Under `file_system`, killing a receiver leaves the sender's files in `/dev/shm`."""

import os
import sys
import time

import torch
import torch.multiprocessing as mp


def hold(tensors, answers):
    """Hold the tensor until killed."""
    tensor = tensors.get()
    answers.put("held")
    tensors.get()
    del tensor


def segments():
    """Return the names of the segments that this process made."""
    prefix = f"torch_{os.getpid()}_"
    return [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]


if __name__ == "__main__":
    mp.set_sharing_strategy("file_system")
    context = mp.get_context("spawn")
    tensors, answers = context.SimpleQueue(), context.SimpleQueue()
    process = context.Process(target=hold, args=(tensors, answers), daemon=True)
    process.start()
    tensor = torch.zeros(2)
    tensors.put(tensor)
    answers.get()
    process.kill()
    process.join()
    del tensor
    deadline = time.monotonic() + 6
    while segments() and time.monotonic() < deadline:
        time.sleep(0.1)
    if not (left := segments()):
        sys.exit(1)
    print(f"6 seconds after all tensors were dropped, {len(left)} segment is left")
    for name in left:
        os.unlink(f"/dev/shm/{name}")
