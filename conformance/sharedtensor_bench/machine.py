"""Describes the machine, and measures how fast it wakes a waiting process.

A message to a process that sleeps costs a wake-up. On some machines, especially virtual
ones, an idle processor sleeps so deeply that the wake-up takes longer than everything
else in a message. Then the differences between implementations look smaller than they
are. So the benchmark measures a round trip of one byte over plain pipes and reports
whether the machine is fast or slow to wake.
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
SLOW_WAKE_UP = 30.0
"""Microseconds; with a longer round trip, the machine counts as slow to wake."""


def measure_wake_up() -> float:
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


def wake_up_mode(round_trips: list[float]) -> str:
    """Return ``fast`` or ``slow`` for measured wake-ups."""
    return "slow" if median(round_trips) >= SLOW_WAKE_UP else "fast"


def describe_machine() -> dict[str, Any]:
    """Return the facts that figures depend on; they do not identify the machine."""
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
    """Return the name of the processor; the architecture if the kernel gives none."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def memory_available() -> int:
    """Return the bytes of memory that are available without swapping; 0 if unknown."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
