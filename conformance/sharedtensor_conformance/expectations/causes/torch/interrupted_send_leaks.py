"""Interrupting `send` leaks a descriptor or segment per tensor pickled so far.

A signal handler raises while the message is pickled, after its tensor. A descriptor
stays under ``file_descriptor``, and a segment under ``file_system``.
"""

import gc
import os
import signal
import sys

import torch
import torch.multiprocessing as mp

ROUNDS = 20


class Interrupting:
    """An object during whose pickling a signal arrives."""

    def __reduce__(self):
        signal.raise_signal(signal.SIGINT)
        return Interrupting, ()


def interrupt(writer):
    """Send a tensor, and be interrupted before the message is written."""
    try:
        writer.send([torch.ones(2), Interrupting()])
    except KeyboardInterrupt:
        gc.collect()


def descriptors():
    """Return the open descriptors of this process."""
    return os.listdir("/proc/self/fd")


def segments():
    """Return the names of the segments that this process made."""
    prefix = f"torch_{os.getpid()}_"
    return [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]


def growth(strategy, held):
    """Return by how much `held` has grown after so many interruptions."""
    mp.set_sharing_strategy(strategy)
    _reader, writer = mp.Pipe(duplex=False)  # it holds the other end open
    interrupt(writer)  # the first one starts what serves all of them
    before = len(held())
    for _ in range(ROUNDS):
        interrupt(writer)
    return len(held()) - before


signal.signal(signal.SIGINT, signal.default_int_handler)
left = growth("file_descriptor", descriptors), growth("file_system", segments)
for name in segments():
    os.unlink(f"/dev/shm/{name}")
if min(left) < ROUNDS:
    sys.exit(1)
print(f"{ROUNDS} interrupted sends left {left[0]} descriptors or {left[1]} segments")
