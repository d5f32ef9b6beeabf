"""Where the reference's time goes: the steps of one small tensor, and a child's start.

The benchmark says how long a message takes; this says of what that consists. All steps
run in one process, which sends to itself and forgets what it has sent, so that it
receives as another would: no wake-up and no other process is in the figures. The two
strategies take turns. A start is measured from outside, with one more import each time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sharedtensor
from sharedtensor import multiprocessing, protocol, state

STRATEGIES = ("file_descriptor", "file_system")
STARTS = {
    "Python": "pass",
    "and multiprocessing.spawn": "import multiprocessing.spawn",
    "and NumPy": "import multiprocessing.spawn, numpy",
    "and the reference, with one tensor": (
        "import multiprocessing.spawn, sharedtensor; sharedtensor.zeros(1)"
    ),
}
"""What a spawned child that uses the reference imports, one thing after the other."""


class Stopwatch:
    """Collects how long each step takes, in microseconds."""

    def __init__(self) -> None:
        self.taken: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def over(self, step: str) -> Iterator[None]:
        """Time the block."""
        began = time.perf_counter()
        yield
        self.taken[step].append((time.perf_counter() - began) * 1e6)


def one_message(stopwatch: Stopwatch, reader: Any, writer: Any) -> None:
    """Make, share, send, receive and drop one tensor of four bytes."""
    with stopwatch.over("make"):
        tensor = sharedtensor.zeros(1, dtype="float32")
    with stopwatch.over("share"):
        tensor.share_memory_()
    with stopwatch.over("pack"):
        message = protocol.pack_message(tensor)
    with stopwatch.over("write and read"):
        protocol.write_message(message, writer)
        received = protocol.read_message(reader)
    assert tensor.storage.segment is not None, "it is shared"
    del state.known[tensor.storage.segment.token]  # as a process that has not got it
    with stopwatch.over("unpack"):
        arrived = protocol.unpack_message(*received)
    with stopwatch.over("drop by the receiver"):
        del arrived
    with stopwatch.over("drop by the sender"):
        del tensor, message


def profile_messages(repeats: int, messages: int) -> dict[str, dict[str, float]]:
    """Return the median of each step under each strategy."""
    watches = {strategy: Stopwatch() for strategy in STRATEGIES}
    reader, writer = multiprocessing.Pipe(duplex=False)
    for _ in range(repeats):
        for strategy in STRATEGIES:
            multiprocessing.set_sharing_strategy(strategy)
            for _ in range(messages):
                one_message(watches[strategy], reader, writer)
    return {
        strategy: {
            step: round(statistics.median(taken), 1)
            for step, taken in watch.taken.items()
        }
        for strategy, watch in watches.items()
    }


def seconds_of(action: Callable[[], object]) -> float:
    """Return how long something takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def profile_starts(repeats: int) -> dict[str, float]:
    """Return the median milliseconds of a process by what it imports."""
    taken: dict[str, list[float]] = defaultdict(list)
    for _ in range(repeats):
        for what, program in STARTS.items():
            command = [sys.executable, "-c", program]
            took = seconds_of(lambda c=command: subprocess.run(c, check=True))  # type: ignore[misc]
            taken[what].append(took * 1e3)
    return {what: round(statistics.median(all_of), 1) for what, all_of in taken.items()}


def main() -> None:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--messages", type=int, default=500, help="for each repeat")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json")
    given = parser.parse_args()
    found = {
        "repeats": given.repeats,
        "messages": given.messages,
        "steps": profile_messages(given.repeats, given.messages),
        "starts": profile_starts(given.repeats),
    }
    given.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
