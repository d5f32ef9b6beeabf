"""Under `file_system`, dropping a tensor aborts after torch_shm_manager was killed."""

import os
import select
import signal
import sys

import torch
import torch.multiprocessing as mp


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


def kill_managers():
    """Kill them, and wait until they are dead."""
    for pid in managers():
        death = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        select.select([death], [], [])


MARK = f"MARK=cause-{os.getpid()}"

if pid := os.fork():
    _, status = os.waitpid(pid, 0)
    ended_by = os.waitstatus_to_exitcode(status)
    for name in os.listdir("/dev/shm"):
        if name.startswith(f"torch_{pid}_"):
            os.unlink(f"/dev/shm/{name}")
    if ended_by != -signal.SIGABRT:
        sys.exit(1)
    print("the process that dropped its tensors died of SIGABRT")
else:
    os.environ.update([MARK.split("=")])
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where C++ says what it thinks
    mp.set_sharing_strategy("file_system")
    tensors = [torch.zeros(2).share_memory_() for _ in range(2)]
    kill_managers()
    tensors.clear()
    os._exit(0)
