"""With FLAGS_dataloader_use_file_descriptor, `get` of a `Manager()` queue raises.

In the server process of ``Manager()`` the flag has its default value. So the process
receives a descriptor, and forwards the tensor under a file name that does not exist.
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
