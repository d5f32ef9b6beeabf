"""A sender that is killed leaves the socket from which its descriptors are fetched."""

import os
import sys
import threading
from multiprocessing import util

import torch
import torch.multiprocessing as mp


def send(tensors):
    """Send a tensor and wait."""
    tensors.put(torch.ones(2))
    threading.Event().wait()


if __name__ == "__main__":
    mp.set_sharing_strategy("file_descriptor")
    context = mp.get_context("fork")
    folder = util.get_temp_dir()
    tensors = context.SimpleQueue()
    process = context.Process(target=send, args=(tensors,))
    process.start()
    tensors.get()
    process.kill()
    process.join()
    left = [name for name in os.listdir(folder) if name.startswith("listener-")]
    if not left:
        sys.exit(1)
    print(f"sockets that are left: {len(left)}, such as {left[0]}")
