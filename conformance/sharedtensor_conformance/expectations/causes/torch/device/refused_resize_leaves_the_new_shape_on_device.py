"""`resize_()` of a received CUDA tensor raises, and still changes the shape."""

import sys

import torch
import torch.multiprocessing as mp

LIMIT = 60


def grow(queue, pipe):
    """Receive a device tensor, try to grow it, and say which shape it has then."""
    tensor = queue.get()
    try:
        tensor.resize_(1 << 24)
    except RuntimeError:
        pipe.send(tuple(tensor.shape))
    else:
        pipe.send("nothing was refused")


def main():
    """Let a second process grow what it receives."""
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    here, there = context.Pipe()
    process = context.Process(target=grow, args=(queue, there))
    process.start()
    tensor = torch.zeros(3, device="cuda")
    queue.put(tensor)
    if not here.poll(LIMIT):
        raise TimeoutError("the receiver did not answer")
    shape = here.recv()
    process.join()
    if shape == (3,):
        sys.exit(1)
    print(f"after the exception the tensor of 3 elements has the shape {shape}")


if __name__ == "__main__":
    main()
