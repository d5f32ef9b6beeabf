"""Interrupting `SharedMemory()` leaves its file in `/dev/shm`.

The exception arises where a signal handler could raise it: when the call that gives the
file its size has returned.
"""

import os
import sys
from multiprocessing.shared_memory import SharedMemory

NAME = f"interrupted_{os.getpid()}"


def interrupt(frame, event, what):
    """Raise when ftruncate(2) has returned."""
    if event == "c_return" and what is os.ftruncate:
        sys.setprofile(None)
        raise KeyboardInterrupt


sys.setprofile(interrupt)
try:
    SharedMemory(NAME, create=True, size=8)
except KeyboardInterrupt:
    pass
finally:
    sys.setprofile(None)
left = os.path.exists(f"/dev/shm/{NAME}")
if not left:
    sys.exit(1)
os.unlink(f"/dev/shm/{NAME}")
print("the call raised KeyboardInterrupt, and its file is left")
