"""Sending a CUDA tensor drops its `.grad`: the receiver gets None."""

import sys

import torch
import torch.multiprocessing as mp

LIMIT = 60


def receive(queue, pipe):
    """Receive a device tensor, and say which grad it has."""
    tensor = queue.get()
    pipe.send((tensor.requires_grad, None if tensor.grad is None else "a grad"))


def main():
    """Send a leaf with a grad."""
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    here, there = context.Pipe()
    process = context.Process(target=receive, args=(queue, there))
    process.start()
    tensor = torch.zeros(2, device="cuda", requires_grad=True)
    tensor.grad = torch.ones(2, device="cuda")
    queue.put(tensor)
    if not here.poll(LIMIT):
        raise TimeoutError("the receiver did not answer")
    requires_grad, grad = here.recv()
    process.join()
    if grad is not None:
        sys.exit(1)
    print(f"arrived with requires_grad {requires_grad} and grad {grad}")


if __name__ == "__main__":
    main()
