"""Under `file_system`, a queue of `Manager()` delivers a copy of the tensor."""

import sys

import torch
import torch.multiprocessing as mp


def write(queue, done):
    """Write to the tensor that the queue hands out."""
    queue.get()[0] = 7.0
    done.put(True)


if __name__ == "__main__":
    mp.set_sharing_strategy("file_system")
    context = mp.get_context("spawn")
    with context.Manager() as manager:
        queue, done = manager.Queue(), manager.Queue()
        tensor = torch.tensor([1.0, 2.0, 3.0])
        process = context.Process(target=write, args=(queue, done), daemon=True)
        process.start()
        queue.put(tensor)
        done.get()
        process.join()
    if tensor[0] == 7.0:
        sys.exit(1)
    print(f"a process wrote 7.0 to what it got from the queue; the sender has {tensor}")
