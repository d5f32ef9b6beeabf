"""`join()` raises ValueError if a process died of a signal without a name."""

import os
import signal
import sys

import torch.multiprocessing as mp


def die(index):
    """End by a signal for real time, which has no name."""
    os.kill(os.getpid(), signal.SIGRTMIN + 1)


if __name__ == "__main__":
    context = mp.spawn(die, nprocs=1, join=False)
    try:
        context.join()
    except mp.ProcessExitedException:
        sys.exit(1)
    except ValueError as error:
        print(f"a process was ended by a signal, and join() raises ValueError: {error}")
    else:
        sys.exit(1)
