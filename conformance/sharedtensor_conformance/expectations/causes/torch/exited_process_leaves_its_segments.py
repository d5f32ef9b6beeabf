"""Under `file_system`, a forked process that exits leaves its tensors in `/dev/shm`."""

import os
import sys
import time

import torch
import torch.multiprocessing as mp

kept = []


def make_and_keep(tensors, done):
    """Send a tensor, keep it, and exit normally once it has been received."""
    kept.append(torch.zeros(2))
    tensors.put(kept[0])
    done.get()


mp.set_sharing_strategy("file_system")
own = torch.zeros(2).share_memory_()  # this process uses the manager and lives on
context = mp.get_context("fork")
tensors, done = context.SimpleQueue(), context.SimpleQueue()
process = context.Process(target=make_and_keep, args=(tensors, done), daemon=True)
process.start()
received = tensors.get()
done.put("received")
process.join()
del received
prefix = f"torch_{process.pid}_"
deadline = time.monotonic() + 6
left = [prefix]
while left and time.monotonic() < deadline:
    time.sleep(0.1)
    left = [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]
if not left:
    sys.exit(1)
print(f"exit code {process.exitcode}, and 6 seconds later {len(left)} segment is left")
for name in left:
    os.unlink(f"/dev/shm/{name}")
