"""`resize_()` of a received tensor raises, and still changes the shape."""

import sys

import torch
import torch.multiprocessing as mp


def grow(tensors, shapes):
    """Receive a tensor, try to grow it, and say which shape it has then."""
    tensor = tensors.get()
    try:
        tensor.resize_(1000)
    except RuntimeError:
        shapes.put(tuple(tensor.shape))
    else:
        shapes.put("nothing was refused")


if __name__ == "__main__":
    context = mp.get_context("spawn")
    tensors, shapes = context.SimpleQueue(), context.SimpleQueue()
    process = context.Process(target=grow, args=(tensors, shapes), daemon=True)
    process.start()
    tensor = torch.zeros(3)
    tensors.put(tensor)
    shape = shapes.get()
    process.join()
    if shape == (3,):
        sys.exit(1)
    print(f"after the exception the tensor of 3 elements has the shape {shape}")
