"""With FLAGS_dataloader_use_file_descriptor, a sender leaks each unfetched descriptor.

The first messages are never received; unpickling the others raises midway.
"""

import contextlib
import gc
import os
import sys

import paddle
import paddle.incubate.multiprocessing as mp

ROUNDS = 10


def refuse():
    """Raise where the message is rebuilt."""
    raise ValueError("this object cannot be rebuilt")


class Bad:
    """An object that can be sent and cannot be received."""

    def __reduce__(self):
        return refuse, ()


def leave_unread():
    """Send a tensor to nobody."""
    queue = mp.SimpleQueue()
    queue.put(paddle.zeros([4]))
    queue.close()


def receive_half():
    """Send a tensor after an object that cannot be received."""
    queue = mp.SimpleQueue()
    queue.put([Bad(), paddle.zeros([4])])
    with contextlib.suppress(ValueError):
        queue.get()
    queue.close()


def growth(fail):
    """Return how many descriptors so many failures leave."""
    fail()  # the first one starts what serves all of them
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(ROUNDS):
        fail()
    gc.collect()
    return len(os.listdir("/proc/self/fd")) - before


paddle.set_flags({"FLAGS_dataloader_use_file_descriptor": True})
unread, half = growth(leave_unread), growth(receive_half)
if min(unread, half) < ROUNDS:
    sys.exit(1)
print(f"{ROUNDS} messages left {unread} descriptors unread, {half} where one failed")
