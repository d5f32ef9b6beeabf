"""With FLAGS_dataloader_use_file_descriptor, a `put` that raises leaks descriptors."""

import contextlib
import gc
import os
import sys

import paddle
import paddle.incubate.multiprocessing as mp

ROUNDS = 10


class Bad:
    """An object that cannot be pickled."""

    def __reduce__(self):
        raise ValueError("this object cannot be pickled")


def refuse(queue):
    """Send a tensor before an object that cannot be pickled."""
    with contextlib.suppress(ValueError):
        queue.put([paddle.zeros([4]), Bad()])
    gc.collect()


paddle.set_flags({"FLAGS_dataloader_use_file_descriptor": True})
queue = mp.SimpleQueue()
refuse(queue)  # the first one starts what serves all of them
before = len(os.listdir("/proc/self/fd"))
for _ in range(ROUNDS):
    refuse(queue)
left = len(os.listdir("/proc/self/fd")) - before
if left < ROUNDS:
    sys.exit(1)
print(f"{ROUNDS} refused messages left {left} descriptors")
