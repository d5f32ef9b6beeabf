"""A receiver that ends by `os._exit` or `os.execv` leaves the files of its tensors.

Only destructors decrement a file's count; ``os._exit`` and ``os.execv`` run none.
"""

import os
import sys

import paddle
import paddle.incubate.multiprocessing as mp


def hold_and_end(channel, become_a_program):
    """Receive a tensor, and end or become another program while holding it."""
    tensor = channel.recv()
    channel.send(tensor.tolist())
    if become_a_program:
        os.execv(sys.executable, [sys.executable, "-c", ""])
    os._exit(0)


def mine():
    """Return the names of the files of this process."""
    prefix = f"paddle_{os.getpid()}_"
    return [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]


def left_by(become_a_program):
    """Return how many files are left when such a receiver has gone."""
    here, there = mp.Pipe()
    work = (there, become_a_program)
    child = mp.get_context("spawn").Process(target=hold_and_end, args=work)
    child.start()
    tensor = paddle.zeros([4])
    here.send(tensor)
    here.recv()
    child.join()
    del tensor
    left = mine()
    for name in left:
        os.unlink(os.path.join("/dev/shm", name))
    return len(left)


if __name__ == "__main__":
    exited, replaced = left_by(False), left_by(True)
    if not exited or not replaced:
        sys.exit(1)
    print(f"after os._exit {exited} file is left, and after os.execv {replaced}")
