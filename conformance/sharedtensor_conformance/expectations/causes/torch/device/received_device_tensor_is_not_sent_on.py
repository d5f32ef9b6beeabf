"""Forwarding a received CUDA tensor, even back to its creator, raises RuntimeError."""

import sys

import torch
import torch.multiprocessing as mp

LIMIT = 60


def pass_on(first, last):
    """Receive a device tensor and send it on; tell the exception."""
    tensor = first.get()
    try:
        last.send(tensor)
    except RuntimeError as error:
        last.send(str(error))


def main():
    """Let a second process send back what it received."""
    context = mp.get_context("spawn")
    first = context.SimpleQueue()
    here, there = context.Pipe()
    process = context.Process(target=pass_on, args=(first, there))
    process.start()
    tensor = torch.ones(3, device="cuda")
    first.put(tensor)
    if not here.poll(LIMIT):
        raise TimeoutError("the second process did not answer")
    came = here.recv()
    process.join()
    if not isinstance(came, str):
        sys.exit(1)
    print(f"sending on what was received: RuntimeError: {came}")


if __name__ == "__main__":
    main()
