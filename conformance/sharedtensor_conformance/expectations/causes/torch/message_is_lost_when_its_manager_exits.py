"""Under `file_system`, `get` raises once the sender's torch_shm_manager has exited."""

import sys
import time

import torch
import torch.multiprocessing as mp


def send(queue):
    """Send under the other strategy, and exit."""
    mp.set_sharing_strategy("file_system")
    queue.put(torch.ones(2))


if __name__ == "__main__":
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=send, args=(queue,), daemon=True)
    process.start()
    process.join()
    time.sleep(6)  # the manager waits for 2 seconds, then it removes the names
    try:
        queue.get()
    except RuntimeError as error:
        print(f"get() raised {type(error).__name__}: {str(error).splitlines()[0]}")
    else:
        sys.exit(1)
