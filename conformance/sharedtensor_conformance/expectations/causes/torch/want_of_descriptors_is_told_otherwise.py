"""The first `put` at the limit of open files raises an error about directories."""

import os
import resource
import sys

import torch
import torch.multiprocessing as mp

TOLD = 3
"""The status of a child that was told of directories."""


def occupy_all_but(spare):
    """Leave this process so many descriptors that it can open."""
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        for descriptor in taken[:spare]:
            os.close(descriptor)


def put_with(spare):
    """Let a child put its first tensor with so many free descriptors."""
    pid = os.fork()
    if pid == 0:
        queue, tensor, status = mp.SimpleQueue(), torch.ones(2), 0
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), 2
        )  # a thread may complain without end
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        occupy_all_but(spare)
        try:
            queue.put(tensor)
        except OSError as error:
            status = TOLD if "temporary directory" in str(error) else 1
        except RuntimeError:
            status = 1
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


mp.set_sharing_strategy("file_descriptor")
told = next((spare for spare in range(5) if put_with(spare) == TOLD), None)
if told is None:
    sys.exit(1)
print(f"with {told} descriptors left: No usable temporary directory found")
