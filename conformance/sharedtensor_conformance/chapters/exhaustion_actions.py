"""Exhausts a resource of an actor's process, so that a test can observe a refusal.

Each kind takes the resource until the kernel refuses, returns `spare` units of it, and
can return everything later. So the refusal that a test provokes comes from the kernel
at a known point, and resources that the actor held before are not affected.

Before that, the interpreter gets spare memory. Without it, the first exception would
need a mapping that the process cannot get.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sharedtensor_conformance.harness.remote.actor import Actor

Restore = Callable[[], object]
"""A function that returns everything that was taken."""

MEMORY_FILE = Path("/proc/meminfo")
CGROUP, CGROUP_FILES = Path("/sys/fs/cgroup"), ("max", "current")

MAX_MAPPINGS_FILE = "/proc/sys/vm/max_map_count"
MAX_EXHAUSTED_MAPPINGS = 1 << 20
"""If the system allows more mappings than this, to exhaust them takes too long."""

LOW_LIMIT = 512
"""The limit of open files of a process that has few of them: half of the usual one."""

NO_STACK = 1 << 52
"""A size in bytes for stacks that no address space has room for."""

_SPARE_OBJECTS = 20_000
_PROT_NONE, _PROT_READ = 0, mmap.PROT_READ  # mmap(2)


def exhaust(actor: Actor, what: str, spare: int) -> Any:
    """Leave this process only `spare` units of a resource; see `restore`.

    Args:
        actor: the process.
        what: ``descriptors``, ``mappings``, ``memory``, ``file_size`` or ``threads``.
        spare: the units that are left; bytes for memory and files. For ``mappings`` it
            has to be even, for ``threads`` 0.
    """
    spare_objects = _spare_objects()
    give_back: Restore = {
        "descriptors": _exhaust_descriptors,
        "mappings": _exhaust_mappings,
        "memory": _exhaust_memory,
        "file_size": _limit_file_size,
        "threads": _refuse_threads,
    }[what](spare)

    def undo() -> None:
        give_back()
        spare_objects.clear()

    return undo


def restore(actor: Actor, undo: Any) -> None:
    """Return what `exhaust` took, and returned a function for."""
    undo()


def start_interrupting(actor: Actor, interval: float, at_most: float | None) -> Any:
    """Send this process signals at an interval: see `Interruptions`."""
    return Interruptions(interval, at_most)


def stop_interrupting(actor: Actor, running: Any) -> int:
    """Stop these signals; return how many were handled."""
    handled: int = running.end()
    return handled


def free_memory(actor: Actor) -> int:
    """Return how many bytes this process can have, also in its ``/dev/shm``."""
    (available,) = re.findall(r"MemAvailable: +(\d+) kB", MEMORY_FILE.read_text())
    free = [1024 * int(available), shutil.disk_usage("/dev/shm").free]
    with suppress(OSError, ValueError):  # where the container has no limit
        limit, used = (int((CGROUP / f"memory.{f}").read_text()) for f in CGROUP_FILES)
        free.append(limit - used)
    return min(free)


def allowed_mappings() -> int:
    """Return how many mappings the system allows to each process."""
    with open(MAX_MAPPINGS_FILE) as file:
        return int(file.read())


def _spare_objects() -> list[bytes]:
    """Return a few small objects that lie far apart.

    The memory between them is free, so the interpreter can use it without a new
    mapping.
    """
    made = [bytes(200 + n % 200) for n in range(_SPARE_OBJECTS)]
    return made[:: _SPARE_OBJECTS // 20]


def _lower_limit(kind: int, value: int) -> Restore:
    """Set a soft limit; return a function that restores it."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, before[1]))
    return lambda: resource.setrlimit(kind, before)


def _exhaust_descriptors(spare: int) -> Restore:
    """Open descriptors up to a limit that is low, but not too low for other processes.

    What these have in flight counts for what this one can send: see `in_flight`.
    """
    highest = max(map(int, os.listdir("/proc/self/fd")))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = min(soft, max(LOW_LIMIT, highest + 2 + spare))
    raise_limit = _lower_limit(resource.RLIMIT_NOFILE, limit)
    taken: list[int] = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        for fd in taken[len(taken) - spare :]:
            os.close(fd)
        del taken[len(taken) - spare :]

    def restore() -> None:
        for fd in taken:
            os.close(fd)
        raise_limit()

    return restore


def _exhaust_memory(spare: int) -> Restore:
    """Allow the address space to grow by `spare` bytes and no more."""
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * mmap.PAGESIZE
    return _lower_limit(resource.RLIMIT_AS, size + spare)


def _limit_file_size(spare: int) -> Restore:
    """Limit files to `spare` bytes; a larger file causes an error and no signal."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # Python's own setting
    return _lower_limit(resource.RLIMIT_FSIZE, spare)


def _refuse_threads(spare: int) -> Restore:
    """Let the kernel refuse each new thread, since its stack finds no room."""
    before = threading.stack_size(NO_STACK)
    return lambda: threading.stack_size(before)


def _exhaust_mappings(spare: int) -> Restore:
    """Split one mapping into as many as the system allows, and free `spare` of them.

    The kernel merges adjacent mappings with the same protection, so every second page
    gets another protection. `spare` has to be even.
    """
    allowed = allowed_mappings()
    if allowed > MAX_EXHAUSTED_MAPPINGS:
        raise RuntimeError(f"the system allows {allowed} mappings to each process")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 4]
    size = (allowed + 2) * mmap.PAGESIZE
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    begin = libc.mmap(None, size, _PROT_NONE, flags, -1, 0)
    pages = range(begin, begin + size, 2 * mmap.PAGESIZE)
    protect, page = libc.mprotect, ctypes.c_size_t(mmap.PAGESIZE)
    split = 0
    while protect(ctypes.c_void_p(pages[split]), page, _PROT_READ) == 0:
        split += 1
    last = _mappings_until_refused()  # a split is refused one earlier than a mapping
    for again in range(spare // 2):  # to join a page with both neighbours frees two
        protect(ctypes.c_void_p(pages[split - 1 - again]), page, _PROT_NONE)

    def restore() -> None:
        libc.munmap(ctypes.c_void_p(begin), ctypes.c_size_t(size))
        last.clear()

    return restore


def _mappings_until_refused() -> list[mmap.mmap]:
    taken = []
    try:
        while True:
            taken.append(mmap.mmap(-1, mmap.PAGESIZE))
    except OSError:
        return taken


class Interruptions:
    """Sends signals with a Python handler to this process, every `interval` seconds.

    Args:
        interval: the interval.
        at_most: seconds after which the signals stop; None for no limit.
    """

    def __init__(self, interval: float, at_most: float | None = None) -> None:
        self.count = 0
        self.until = None if at_most is None else time.monotonic() + at_most
        self.before: Any = signal.signal(signal.SIGALRM, self._count)
        signal.setitimer(signal.ITIMER_REAL, interval, interval)

    def _count(self, *ignored: Any) -> None:
        self.count += 1
        if self.until is not None and time.monotonic() > self.until:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def end(self) -> int:
        """Stop the signals; return how many were handled."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)
        return self.count
