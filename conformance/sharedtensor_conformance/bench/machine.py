"""What machine this is, and how fast it wakes a process that waits.

A message to a process that sleeps costs a wake-up. Some machines, virtual ones above
all, let an idle processor sleep so deeply that this takes longer than everything else
in a message; then implementations look more alike than they are. So the benchmark
measures a round trip of one byte over plain pipes and says which of the two it met.
"""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

ROUND_TRIPS = 200
SLOW = 30.0
"""Microseconds of a round trip from which on the machine counts as slow to wake."""


def wake_up() -> float:
    """Return the microseconds of a round trip of one byte between two processes."""
    reader, to_us = os.pipe()
    to_child, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(writer)
            while os.read(to_child, 1):
                os.write(to_us, b".")
        finally:
            os._exit(0)
    seconds = []
    for _ in range(ROUND_TRIPS):
        began = perf_counter()
        os.write(writer, b".")
        os.read(reader, 1)
        seconds.append(perf_counter() - began)
    for fd in (reader, to_us, to_child, writer):
        os.close(fd)
    os.waitpid(pid, 0)
    return median(seconds) * 1e6


def mode_of(round_trips: list[float]) -> str:
    """Return ``fast`` or ``slow`` for some measured wake-ups."""
    return "slow" if median(round_trips) >= SLOW else "fast"


def machine() -> dict[str, Any]:
    """Return what the figures depend on; nothing in it names the machine."""
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "descriptors": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "load": round(os.getloadavg()[0], 1),
    }


def processor() -> str:
    """Return the processor's name, as far as the kernel tells it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def memory_available() -> int:
    """Return the bytes that can be had without anybody suffering."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
