"""A forked child that drops an inherited tensor deletes the file its parent uses."""

import os
import sys

import paddle
import paddle.incubate.multiprocessing as mp

inherited = []


def drop():
    """Let go of what was inherited."""
    inherited.clear()


def mine():
    """Return the names of the files of this process."""
    prefix = f"paddle_{os.getpid()}_"
    return [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]


context = mp.get_context("fork")
tensors = context.SimpleQueue()
tensors.put(paddle.ones([2]))
inherited.append(tensors.get())
before = mine()
process = context.Process(target=drop, daemon=True)
process.start()
process.join()
if not before or mine() == before:
    sys.exit(1)
print(f"the parent's tensor is alive; its name was there ({before}) and has gone")
