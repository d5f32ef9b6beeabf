"""Dropping many shared tensors hangs while SIGSTOP suspends torch_shm_manager."""

import os
import signal
import sys

import torch
import torch.multiprocessing as mp

MANY = 600
LIMIT = 10


def managers():
    """Return the process ids of the managers that this program started."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                mine = MARK.encode() in file.read()
            with open(f"/proc/{entry}/comm") as file:
                manager = file.read().startswith("torch_shm_manag")
        except OSError:
            continue  # it has ended
        found += [int(entry)] if mine and manager else []
    return found


def tell_managers(number):
    """Send a signal to the managers."""
    for pid in managers():
        os.kill(pid, number)


MARK = f"MARK=cause-{os.getpid()}"

if pid := os.fork():
    _, status = os.waitpid(pid, 0)
    ended_by = os.waitstatus_to_exitcode(status)
    tell_managers(signal.SIGCONT)
    for name in os.listdir("/dev/shm"):
        if name.startswith(f"torch_{pid}_"):
            os.unlink(f"/dev/shm/{name}")
    if ended_by != -signal.SIGALRM:
        sys.exit(1)
    print(f"after {LIMIT} seconds the process still dropped its {MANY} tensors")
else:
    os.environ.update([MARK.split("=")])
    mp.set_sharing_strategy("file_system")
    tensors = [torch.zeros(2).share_memory_() for _ in range(MANY)]
    tell_managers(signal.SIGSTOP)
    signal.alarm(LIMIT)
    tensors.clear()
    os._exit(0)
