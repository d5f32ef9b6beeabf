"""`forkserver` cannot start a process with 300 tensors among its arguments."""

import sys

import torch
import torch.multiprocessing as mp

COUNT = 300


def use(tensors):
    """Use the tensors, if they come so far."""
    print(f"{len(tensors)} tensors arrived")


def main():
    """Start a process with so many tensors among its arguments."""
    mp.set_sharing_strategy("file_descriptor")
    tensors = [torch.zeros(2) for _ in range(COUNT)]
    process = mp.get_context("forkserver").Process(target=use, args=(tensors,))
    try:
        process.start()
    except ValueError as error:
        print(f"a process with {COUNT} tensors is not started: {error}")
        return
    process.join()
    sys.exit(1)


if __name__ == "__main__":
    main()
