"""What all tests need: signals as they are where a person starts them, and bytecode.

Tests that take long, most of which wait, are started first, by half of the workers: the
others compute beside them, and nothing long is left for the end.

A shell starts what runs in its background with SIGINT ignored, and nohup(1) does so
with SIGHUP. The processes that the tests start would inherit that.

They start some thousand processes. Where Python is told to write no bytecode, as in
many images of containers, each of them would compile the checkout's modules anew. Each
that imports NumPy would start threads for its linear algebra, which nothing here does.
"""

from __future__ import annotations

import os
import signal
import sys

import pytest

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ.setdefault("OMP_NUM_THREADS", "1")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker of tests that take long."""
    takes = "takes(seconds): it takes about so long, so it is among the first to start"
    config.addinivalue_line("markers", takes)


def seconds_of(item: pytest.Item) -> float:
    """Return what a long test takes, 0 for all others."""
    marker = item.get_closest_marker("takes")
    return marker.args[0] if marker else 0.0


def in_blocks(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Order tests for workers that begin with equal blocks of them (``worksteal``)."""
    long = sorted(filter(seconds_of, items), key=seconds_of, reverse=True)
    others = iter([item for item in items if not seconds_of(item)])
    half = workers // 2
    ordered: list[pytest.Item] = []
    for worker in range(workers):
        size = (len(items) - len(ordered)) // (workers - worker)
        first = long[worker::half] if worker < half else []
        ordered += first
        ordered += [next(others) for _ in range(size - len(first))]
    return ordered


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long tests first where there are enough others to go on beside them."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1 and 4 * sum(seconds_of(item) > 0 for item in items) < len(items):
        items[:] = in_blocks(items, workers)
