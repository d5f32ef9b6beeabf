"""`spawn()` raises where SIGCHLD is ignored, though all processes have succeeded."""

import signal
import sys

import torch.multiprocessing as mp


def work(index):
    """Do nothing, and so end well."""


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        mp.spawn(work, nprocs=2)
    except TypeError as error:
        print(f"spawn() raised {type(error).__name__}: {error}")
        sys.exit(0)
    sys.exit(1)
