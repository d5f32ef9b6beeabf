"""A program that a receiver starts inherits the descriptors of received tensors."""

import fcntl
import os
import sys

import torch
import torch.multiprocessing as mp


def segments():
    """Return the descriptors of segments that a program would inherit."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{name}"
        if os.path.islink(path) and "/torch_" in os.readlink(path):
            closed = fcntl.fcntl(int(name), fcntl.F_GETFD) & fcntl.FD_CLOEXEC
            found += [] if closed else [name]
    return found


def receive(tensors, answers):
    """Receive three tensors and say what a program would inherit."""
    held = [tensors.get() for _ in range(3)]
    answers.put(len(segments()))
    tensors.get()
    del held


if __name__ == "__main__":
    mp.set_sharing_strategy("file_descriptor")
    context = mp.get_context("spawn")
    tensors, answers = context.SimpleQueue(), context.SimpleQueue()
    process = context.Process(target=receive, args=(tensors, answers), daemon=True)
    process.start()
    sent = [torch.ones(2) for _ in range(3)]
    for tensor in sent:
        tensors.put(tensor)
    inherited = answers.get()
    process.kill()
    process.join()
    if inherited == 0:
        sys.exit(1)
    print(f"of 3 descriptors that were received, a program inherits {inherited}")
