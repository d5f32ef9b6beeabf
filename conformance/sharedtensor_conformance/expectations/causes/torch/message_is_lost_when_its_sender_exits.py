"""`get` raises FileNotFoundError if the sender has exited, even normally."""

import sys

import torch
import torch.multiprocessing as mp


def send(queue):
    """Send and exit."""
    queue.put(torch.ones(2))


if __name__ == "__main__":
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=send, args=(queue,), daemon=True)
    process.start()
    process.join()
    try:
        queue.get()
    except OSError as error:
        print(f"get() raised {type(error).__name__}: {error}")
    else:
        sys.exit(1)
