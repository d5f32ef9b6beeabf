"""`join()` raises exceptions that declare `error_pid` but never set it."""

import sys

import torch.multiprocessing as mp


def fail(index):
    """Raise in the child."""
    raise LookupError(f"process {index}")


if __name__ == "__main__":
    context = mp.spawn(fail, nprocs=1, join=False)
    (pid,) = context.pids()
    try:
        context.join()
    except mp.ProcessRaisedException as error:
        told = getattr(error, "error_pid", None)
    else:
        sys.exit(1)
    if told == pid:
        sys.exit(1)
    print(f"error_pid is {told}, and process {pid} failed")
