"""`get` from a queue of `Manager()` raises for a tensor sent by descriptor.

The flag of the manager's process has its default. So it sends what came as a descriptor
on under a name that nobody has made.
"""

import sys

import paddle
import paddle.incubate.multiprocessing as mp

if __name__ == "__main__":
    paddle.set_flags({"FLAGS_dataloader_use_file_descriptor": True})
    with mp.get_context("spawn").Manager() as manager:
        queue = manager.Queue()
        queue.put(paddle.ones([2]))
        try:
            queue.get()
        except RuntimeError as error:
            said = str(error).splitlines()
            print(f"it cannot be received: {next(filter(None, map(str.strip, said)))}")
        else:
            sys.exit(1)
