"""A replacement worker of a `Pool` is in static mode: `to_tensor` makes no tensor.

The pool forks such a worker in a thread. Any process that a thread forks is in static
mode, though the program is not.
"""

import multiprocessing
import sys

import paddle


def _kind_of_tensor(number):
    return type(paddle.to_tensor([1.0])).__name__


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    with context.Pool(1, maxtasksperchild=1) as pool:
        kinds = pool.map(_kind_of_tensor, range(3), chunksize=1)
    if kinds == ["Tensor"] * 3:
        sys.exit(1)
    print(f"in three workers, one after the other, to_tensor() returned: {kinds}")
