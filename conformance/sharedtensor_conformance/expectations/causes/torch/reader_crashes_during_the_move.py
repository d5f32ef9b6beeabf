"""`share_memory_()` in one thread crashes another one that reads the tensor."""

import signal
import sys
import threading

import torch
import torch.multiprocessing as mp

TENSORS = 20


def share_while_reading():
    """Let a thread read each of some tensors of 64 MiB until it is shared."""
    torch.set_num_threads(1)
    for _ in range(TENSORS):
        tensor = torch.ones(16 << 20)
        sharing = threading.Thread(target=tensor.share_memory_)
        sharing.start()
        while not tensor.is_shared():
            tensor.sum()
        sharing.join()


if __name__ == "__main__":
    process = mp.get_context("spawn").Process(target=share_while_reading, daemon=True)
    process.start()
    process.join(60)
    if process.exitcode != -signal.SIGSEGV:
        sys.exit(1)
    print("the process whose thread read the tensor died of SIGSEGV")
