"""Receiving a tensor maps whatever file the descriptor in the message refers to."""

import sys
import tempfile
from multiprocessing import reduction

import torch
import torch.multiprocessing as mp
from torch.multiprocessing import reductions

mp.set_sharing_strategy("file_descriptor")
sender, receiver = mp.get_context("fork").Pipe()


class Forged:
    """Pickles as a storage does, with the descriptor of another file."""

    def __reduce__(self):
        """Reduce to a handle that names no segment."""
        handle = (torch.UntypedStorage, reduction.DupFd(file.fileno()), 4)
        return reductions.rebuild_storage_fd, handle


with tempfile.TemporaryFile() as file:
    file.write(b"diary")
    file.flush()
    sender.send(Forged())
    try:
        received = receiver.recv()
    except RuntimeError:
        sys.exit(1)
print(f"a storage was received that holds {bytes(received.tolist())!r}")
