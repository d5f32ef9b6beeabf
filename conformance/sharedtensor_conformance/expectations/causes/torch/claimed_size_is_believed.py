"""Receiving a tensor grows its segment to whatever size the message claims."""

import sys
from multiprocessing import reduction

import torch
import torch.multiprocessing as mp
from torch.multiprocessing import reductions

mp.set_sharing_strategy("file_descriptor")
tensor = torch.zeros(4).share_memory_()
sender, receiver = mp.get_context("fork").Pipe()
descriptor, size = tensor.untyped_storage()._share_fd_cpu_()
claimed = size + (1 << 20)


class Forged:
    """Pickles as the storage does, with another size."""

    def __reduce__(self):
        """Reduce to a handle that claims too much."""
        handle = (torch.UntypedStorage, reduction.DupFd(descriptor), claimed)
        return reductions.rebuild_storage_fd, handle


sender.send(Forged())
reductions.shared_cache.clear()  # as in another process, which has no such storage
try:
    received = receiver.recv()
except RuntimeError:
    sys.exit(1)
if received.nbytes() != claimed:
    sys.exit(1)
print(f"a segment of {size} bytes was received as a storage of {received.nbytes()}")
