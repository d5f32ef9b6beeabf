"""Profiles the reference: the steps of sending a small tensor, and a child's start.

The benchmark measures how long a message takes; this script measures its parts. All
steps run in one process, which sends to itself and forgets what it sent, so that it
receives like another process. So the figures contain no wake-ups and no other
processes. The two strategies alternate. The start of a child is measured from outside,
with one more import each time. The processor time of two processes shows which part of
a message is Python, which is the kernel, and what the manager adds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
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
from sharedtensor.names import program

STRATEGIES = ("file_descriptor", "file_system")
WARM_UP = 100
Used = dict[str, float]
"""Processor time, in user space and in the kernel."""

STARTS = {
    "Python": "pass",
    "and multiprocessing.spawn": "import multiprocessing.spawn",
    "and NumPy": "import multiprocessing.spawn, numpy",
    "and the reference, with one tensor": (
        "import multiprocessing.spawn, sharedtensor; sharedtensor.zeros(1)"
    ),
}
"""The imports of a spawned child that uses the reference, in steps."""


class Stopwatch:
    """Collects the duration of each step in microseconds."""

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
        received = reader.receive()
    assert tensor.storage.segment is not None, "it is shared"
    del state.known[tensor.storage.segment.token]  # as in another process
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


def profile_sides(messages: int) -> dict[str, dict[str, dict[str, float]]]:
    """Return the microseconds of processor time of each process for a message."""
    return {strategy: sides_of(strategy, messages) for strategy in STRATEGIES}


def sides_of(strategy: str, messages: int) -> dict[str, dict[str, float]]:
    """Send new tensors to another process; return the time that each process uses."""
    multiprocessing.set_sharing_strategy(strategy)
    context = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    answers, told = context.Pipe(duplex=False)
    receiver = context.Process(target=receive, args=(reader, told, messages))
    receiver.start()
    send(writer, WARM_UP)
    answers.recv()
    before = manager_time(strategy)
    used = {"sender": send(writer, messages), "receiver": answers.recv()}
    receiver.join()
    if before:
        used["manager"] = since(before, manager_time(strategy))
    return {
        side: {where: round(s / messages * 1e6, 1) for where, s in taken.items()}
        for side, taken in used.items()
    }


def send(writer: Any, count: int) -> Used:
    """Send new tensors and drop them; return the processor time."""
    before = own_time()
    for _ in range(count):
        writer.send(sharedtensor.zeros(1, dtype="float32"))
    return since(before, own_time())


def receive(reader: Any, told: Any, count: int) -> None:
    """Receive tensors and drop them; send the time for the later ones."""
    for _ in range(WARM_UP):
        reader.recv()
    told.send(None)
    before = own_time()
    for _ in range(count):
        reader.recv()
    told.send(since(before, own_time()))


def own_time() -> Used:
    """Return the processor time of this process, in seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"Python": used.ru_utime, "kernel": used.ru_stime}


def manager_time(strategy: str) -> Used:
    """Return the processor time of the manager, proc_pid_stat(5), or 0 without one."""
    if strategy != "file_system":
        return {}
    stat = (manager() / "stat").read_text()
    user, system = stat.rpartition(")")[2].split()[11:13]
    tick = 1 / os.sysconf("SC_CLK_TCK")
    return {"Python": int(user) * tick, "kernel": int(system) * tick}


def manager() -> Path:
    """Return the folder of the manager of this program, proc(5)."""
    mark = program.current().encode()
    folders = Path("/proc").glob("[0-9]*")
    return next(one for one in folders if is_manager(one, mark))


def is_manager(folder: Path, mark: bytes) -> bool:
    """Return whether the command line of a process has the id of a program."""
    try:
        return mark in (folder / "cmdline").read_bytes().split(b"\0")
    except OSError:  # it has ended
        return False


def since(before: Used, now: Used) -> Used:
    """Return the difference of two processor times."""
    return {where: now[where] - before[where] for where in now}


def seconds_of(action: Callable[[], object]) -> float:
    """Return how long an action takes, in seconds."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def profile_starts(repeats: int) -> dict[str, float]:
    """Return the median duration of a process in milliseconds, by its imports."""
    taken: dict[str, list[float]] = defaultdict(list)
    for _ in range(repeats):
        for what, imports in STARTS.items():
            command = [sys.executable, "-c", imports]
            took = seconds_of(lambda c=command: subprocess.run(c, check=True))  # type: ignore[misc]
            taken[what].append(took * 1e3)
    return {what: round(statistics.median(all_of), 1) for what, all_of in taken.items()}


def main() -> None:
    """Measure, and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    text = "repeats (default: %(default)s)"
    parser.add_argument("--repeats", type=int, default=7, help=text)
    text = "messages in each repeat (default: %(default)s)"
    parser.add_argument("--messages", type=int, default=500, help=text)
    parser.add_argument(
        "--sent", type=int, default=20_000, help="messages between two processes"
    )
    text = "the record to write"
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE.json", help=text
    )
    given = parser.parse_args()
    found = {
        "repeats": given.repeats,
        "messages": given.messages,
        "steps": profile_messages(given.repeats, given.messages),
        "sides": profile_sides(given.sent),
        "starts": profile_starts(given.repeats),
    }
    given.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
