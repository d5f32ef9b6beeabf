"""A process that SIGINT interrupts counts as successful: `join()` returns True."""

import os
import signal
import sys
import time

import torch.multiprocessing as mp


def work(index, begun, done):
    """Work for a minute, which the signal cuts short."""
    begun.release()
    time.sleep(60)
    done.put(index)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # where it is ignored
    context = mp.get_context("fork")
    begun, done = context.Semaphore(0), context.SimpleQueue()
    started = mp.start_processes(
        work, (begun, done), nprocs=1, join=False, start_method="fork"
    )
    begun.acquire()
    os.kill(started.pids()[0], signal.SIGINT)
    try:
        all_is_well = started.join()
    except mp.ProcessExitedException:
        sys.exit(1)
    if not (all_is_well and done.empty()):
        sys.exit("the process has worked, or joining says that it runs")
    status = started.processes[0].exitcode
    print(f"no work was done, and join() returned {all_is_well}; exit status: {status}")
