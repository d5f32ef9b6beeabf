"""`share_memory_()` always raises `Broken pipe` after torch_shm_manager was killed."""

import os
import select
import signal

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
os.environ.update([MARK.split("=")])
mp.set_sharing_strategy("file_system")
tensor = torch.zeros(2).share_memory_()
kill_managers()
said = ""
try:
    torch.zeros(2).share_memory_()
except RuntimeError as error:
    said = f"share_memory_() raised: {str(error).splitlines()[0]}"
for name in os.listdir("/dev/shm"):
    if name.startswith(f"torch_{os.getpid()}_"):
        os.unlink(f"/dev/shm/{name}")
print(said, flush=True)
os._exit(0 if said else 1)  # dropping the tensor would abort the process
