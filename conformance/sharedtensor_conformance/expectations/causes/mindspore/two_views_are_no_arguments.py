"""Spawning a process with two views of one storage as arguments raises ValueError."""

import sys

import mindspore
import mindspore.multiprocessing as mp


def do_nothing(*tensors):
    """Take the tensors."""


if __name__ == "__main__":
    base = mindspore.mint.zeros((6,))
    context = mp.get_context("spawn")
    process = context.Process(target=do_nothing, args=(base[:3], base[3:]))
    try:
        process.start()
    except ValueError as error:
        print(f"start() raised: {error}")
    else:
        process.join()
        sys.exit(1)
