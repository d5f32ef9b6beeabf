"""After a failure, a second `join()` blames another process; a third returns True."""

import sys
import time

import torch.multiprocessing as mp


def fail_or_wait(index):
    """Raise in the second child; wait in the first."""
    if index == 1:
        raise LookupError("the words of process 1")
    time.sleep(60)


def joined(context):
    """Return what one call of join() does, in words."""
    try:
        return f"returns {context.join()}"
    except (mp.ProcessRaisedException, mp.ProcessExitedException) as error:
        return f"raises {type(error).__name__} of process {error.error_index}"


if __name__ == "__main__":
    started = mp.spawn(fail_or_wait, nprocs=2, join=False)
    calls = [joined(started) for _ in range(3)]
    if calls[0] != "raises ProcessRaisedException of process 1":
        sys.exit(f"the first call {calls[0]}")
    if calls[1:] == calls[:1] * 2:
        sys.exit(1)
    print("; then it ".join(calls))
