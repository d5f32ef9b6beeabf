"""`SharedMemory()` hangs in a child forked while another thread called it."""

import multiprocessing as mp
import os
import sys
import threading
from contextlib import suppress
from multiprocessing.shared_memory import SharedMemory

FORKS = 300
LIMIT = 5
NAMES = [f"stdlib_{os.getpid()}_{who}" for who in ("thread", "child")]


def make_one(name):
    """Make a segment and remove it, which tells the resource tracker of both."""
    segment = SharedMemory(name, create=True, size=1)
    segment.close()
    segment.unlink()


def make_until(stopped):
    """Go on with that until told to stop."""
    while not stopped.is_set():
        make_one(NAMES[0])


def forked_child_hangs(context):
    """Fork a child that makes one segment; return whether it does not end."""
    child = context.Process(target=make_one, args=NAMES[1:])
    child.start()
    child.join(LIMIT)
    hangs = child.exitcode is None
    child.kill()
    child.join()
    return hangs


if __name__ == "__main__":
    context = mp.get_context("fork")
    make_one(NAMES[0])
    sys.setswitchinterval(1e-6)
    stopped = threading.Event()
    making = threading.Thread(target=make_until, args=(stopped,))
    making.start()
    hangs = any(forked_child_hangs(context) for _ in range(FORKS))
    stopped.set()
    making.join()
    with suppress(FileNotFoundError):  # of a child that was killed
        os.unlink(f"/dev/shm/{NAMES[1]}")
    if not hangs:
        sys.exit(1)
    print("a child that was forked while a thread made segments does not end")
