"""A program that a receiver starts inherits the descriptors of received tensors."""

import fcntl
import os
import sys

import paddle
import paddle.incubate.multiprocessing as mp

COUNT = 3


def inherited():
    """Return how many descriptors of segments a program would inherit."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{name}"
        if os.path.islink(path) and "/paddle_" in os.readlink(path):
            closed = fcntl.fcntl(int(name), fcntl.F_GETFD) & fcntl.FD_CLOEXEC
            found += not closed
    return found


def receive(tensors, answers):
    """Receive the tensors and say what a program would inherit."""
    held = [tensors.recv() for _ in range(COUNT)]
    answers.send(inherited())
    tensors.recv()
    del held


if __name__ == "__main__":
    paddle.set_flags({"FLAGS_dataloader_use_file_descriptor": True})
    context = mp.get_context("spawn")
    here, there = context.Pipe()
    answers, answering = context.Pipe(duplex=False)
    process = context.Process(target=receive, args=(there, answering), daemon=True)
    process.start()
    sent = [paddle.ones([2]) for _ in range(COUNT)]
    for tensor in sent:
        here.send(tensor)
    found = answers.recv()
    process.kill()
    process.join()
    if found == 0:
        sys.exit(1)
    print(f"of {COUNT} descriptors that were received, a program inherits {found}")
