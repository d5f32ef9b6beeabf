"""Under `file_system`, a message to a killed receiver leaks its segment."""

import os
import sys
import time

import torch
import torch.multiprocessing as mp


def wait(messages, never):
    """Wait until killed, without receiving the messages."""
    never.get()


def segments():
    """Return the names of the segments that this process made."""
    prefix = f"torch_{os.getpid()}_"
    return [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]


mp.set_sharing_strategy("file_system")
context = mp.get_context("fork")
messages, never = context.SimpleQueue(), context.SimpleQueue()
process = context.Process(target=wait, args=(messages, never), daemon=True)
process.start()
messages.put(torch.zeros(2))
process.kill()
process.join()
messages.close()
deadline = time.monotonic() + 6
while segments() and time.monotonic() < deadline:
    time.sleep(0.1)
if not (left := segments()):
    sys.exit(1)
print(f"6 seconds after the queue was closed, {len(left)} segment is left")
for name in left:
    os.unlink(f"/dev/shm/{name}")
