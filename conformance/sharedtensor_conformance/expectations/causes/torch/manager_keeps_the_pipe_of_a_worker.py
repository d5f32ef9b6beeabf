"""`recv` raises no EOFError after a worker exits: torch_shm_manager holds the pipe.

The worker's torch_shm_manager has inherited the write end of the pipe. It runs while
any process has a connection to it, as the reader has after it received a tensor.
"""

import sys

import torch
import torch.multiprocessing as mp

LIMIT = 6
"""Seconds: a manager ends two seconds after the last process that uses it."""


def work(writer):
    """Send a tensor by name, and end."""
    mp.set_sharing_strategy("file_system")
    writer.send(torch.ones(2))
    writer.close()


if __name__ == "__main__":
    mp.set_sharing_strategy("file_system")
    context = mp.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    worker = context.Process(target=work, args=(writer,))
    worker.start()
    writer.close()
    tensor = reader.recv()
    worker.join()
    if reader.poll(LIMIT):
        sys.exit(1)
    print(f"{LIMIT} seconds after the only writer has ended, its pipe is still open")
