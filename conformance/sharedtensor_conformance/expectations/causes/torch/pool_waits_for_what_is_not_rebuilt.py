"""A pool hangs when unpickling a task or a result raises an exception."""

import sys

import torch.multiprocessing as mp

TIMEOUT = 10  # seconds


class Unreadable:
    """An object that raises when it is unpickled, as some exceptions do."""

    def __reduce__(self):
        return int, ("no number",)


def make_unreadable():
    """Return such an object, as the result of a task."""
    return Unreadable()


if __name__ == "__main__":
    context = mp.get_context("spawn")
    tasks = {"task": (str, [Unreadable()]), "result": (make_unreadable, [])}
    for what, task in tasks.items():
        pool = context.Pool(1)
        try:
            pool.apply_async(*task).get(TIMEOUT)
        except mp.TimeoutError:
            print(f"{what}: the pool had given no answer after {TIMEOUT} seconds")
        except ValueError:
            sys.exit(1)
