"""Under `file_system`, a parent that drops a tensor deletes its forked child's file."""

import os
import sys

import torch
import torch.multiprocessing as mp


def send(tensor, tensors, dropped):
    """Send what was inherited once the parent has dropped it."""
    dropped.get()
    tensors.put(tensor)
    dropped.get()


mp.set_sharing_strategy("file_system")
own = torch.zeros(2).share_memory_()  # this process uses the manager and lives on
context = mp.get_context("fork")
tensors, dropped = context.SimpleQueue(), context.SimpleQueue()
tensor = torch.ones(2).share_memory_()
process = context.Process(target=send, args=(tensor, tensors, dropped), daemon=True)
process.start()
process._args = ()
del process._args, tensor
dropped.put("dropped")
try:
    tensors.get()
except RuntimeError as error:
    print(f"the child's tensor cannot be received: {error}")
else:
    sys.exit(1)
finally:
    process.kill()
    process.join()
    del own
    prefix = f"torch_{os.getpid()}_"
    for name in os.listdir("/dev/shm"):
        if name.startswith(prefix):
            os.unlink(f"/dev/shm/{name}")
