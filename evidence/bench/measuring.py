"""Measures the rows, inside the owner process.

Each measurement returns a figure for the implementation and, if the row has one, for
the *floor*, which is measured right after it. The floor is one of these: bytes of the
size of the pickled message, over the same channel between the same processes; a memory
copy into existing pages; or a child process of the standard library. The figure of a
batch is the median over its messages if each message is answered, else their mean.

All received values are verified.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import resource
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from statistics import median
from time import clock_gettime, perf_counter, process_time
from typing import Any

from sharedtensor_conformance.adapter import Implementation, Layout
from sharedtensor_conformance.adapters import loader
from sharedtensor_conformance.harness.kernel import process_tree

from bench.child import send_argument_count
from bench.exchange import (
    JOIN_TIMEOUT,
    Messages,
    PeerHandle,
    WrongValue,
    open_descriptors,
)
from bench.rows import ROWS, TENSOR_COUNT, VIEW_COUNT, Cell, Row

US_PER_SECOND = 1e6
WARM_UP = 3
VALUE_CYCLE = 100  # the first elements of tensors are 1 to this, in turn

Figures = tuple[float, float | None]
"""A figure and its floor."""


class Owner:
    """The process that measures one implementation under one strategy, as its owner."""

    def __init__(self, name: str, implementation: Implementation, strategy: str):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.name = name
        self.implementation = implementation
        self.strategy = strategy
        self.operations: Any = loader.load_operations(name)
        self.operations.enter_child(strategy)
        self.messages = Messages(self.operations)
        self.peers: dict[str, PeerHandle] = {}
        self.sizes: dict[str, int] = {}

    def measure(self, cell: Cell) -> Figures:
        """Measure one batch of a cell, without garbage collection."""
        row = ROWS[cell.row]
        method: Callable[[Row, Cell], Figures] = getattr(self, f"measure_{row.kind}")
        gc.collect()
        gc.disable()
        try:
            return method(row, cell)
        finally:
            gc.enable()

    def context(self, start_method: str) -> Any:
        """Return the implementation's multiprocessing context for a start method."""
        return self.operations.multiprocessing.get_context(start_method)

    def peer(self, start_method: str) -> PeerHandle:
        """Return the peer for a start method; it is started at the first call."""
        if start_method not in self.peers:
            arguments = self.name, self.strategy, self.implementation.channels
            self.peers[start_method] = PeerHandle(
                self.context(start_method), *arguments
            )
        return self.peers[start_method]

    # Messages

    def measure_messages(self, row: Row, cell: Cell) -> Figures:
        """Time messages with tensors, and messages with the same number of bytes."""
        filler, number = self.filler(row), WARM_UP + row.count
        taken, _ = self.exchange(row, cell, self.contents(row, number))
        floor, _ = self.exchange(row, cell, [filler] * number)
        return taken * US_PER_SECOND, floor * US_PER_SECOND

    def measure_processor(self, row: Row, cell: Cell) -> Figures:
        """Sum a message's processor time over all processes, from send to last drop.

        A manager may do its work later. All its work until the end of the floor's
        measurement counts, because messages of bytes do not use a manager.
        """
        filler, number = self.filler(row), WARM_UP + row.count
        # A batch that does not count: after only a few messages, times are 10 % higher.
        self.exchange(row, cell, self.contents(row, number))
        before = processor_times(self.implementation.manager_pattern)
        _, taken = self.exchange(row, cell, self.contents(row, number))
        _, floor = self.exchange(row, cell, [filler] * number)
        now = processor_times(self.implementation.manager_pattern)
        managers = sum(now[pid] - before.get(pid, 0) for pid in now)
        taken += managers * row.count / number
        return taken / row.count * US_PER_SECOND, floor / row.count * US_PER_SECOND

    def exchange(
        self, row: Row, cell: Cell, contents: list[Any]
    ) -> tuple[float, float]:
        """Send a batch, after a few messages that do not count, and drop it.

        Returns:
            The seconds for a message, and the processor time of both sides in seconds.
        """
        peer, warming_up = self.peer(cell.start_method), replace(row, answered=True)
        first, batch = contents[:WARM_UP], contents[WARM_UP:]
        contents.clear()
        peer.exchange(self.messages, first, warming_up, cell)
        seconds, used = peer.exchange(self.messages, batch, row, cell)
        peer.ask("drop")
        self.messages.release(first)
        began = process_time()
        self.messages.release(batch)
        return seconds, used + process_time() - began

    def contents(self, row: Row, count: int) -> list[Any]:
        """Return the messages of a batch."""
        match row.what:
            case "same":
                return [self.tensor(row.nbytes, 7)] * count
            case "views":
                return [self.views(row.nbytes)] * count
            case "many":
                return [self.tensors(row.nbytes, TENSOR_COUNT) for _ in range(count)]
        return self.tensors(row.nbytes, count)

    def tensors(self, nbytes: int, count: int) -> list[Any]:
        """Return new tensors with different first values."""
        return [self.tensor(nbytes, number) for number in range(count)]

    def tensor(self, nbytes: int, number: int) -> Any:
        """Return a new float32 tensor whose first value depends on `number`."""
        values = [float(number % VALUE_CYCLE + 1)] + [0.0] * (nbytes // 4 - 1)
        return self.operations.make(values, (len(values),), "float32")

    def views(self, nbytes: int) -> dict[str, Any]:
        """Return views of one storage, by name."""
        each = nbytes // 4 // VIEW_COUNT
        values = [float(n // each % VALUE_CYCLE) for n in range(each * VIEW_COUNT)]
        base = self.operations.make(values, (len(values),), "float32")
        windows = (Layout("", each * n, (each,), (1,)) for n in range(VIEW_COUNT))
        views = enumerate(self.operations.view(base, window) for window in windows)
        return {f"layer.{number}.weight": view for number, view in views}

    def filler(self, row: Row) -> bytes:
        """Return bytes of the size of a row's pickled message; the size is cached."""
        if row.name not in self.sizes:
            self.sizes[row.name] = self.pickled_size(row)
        return b"\x01" * self.sizes[row.name]

    def pickled_size(self, row: Row) -> int:
        """Return the size in bytes of a pickled message of a row, read from a pipe."""
        contents = self.contents(row, 1)
        message = self.messages.encoded(contents[0])
        reader, writer = self.operations.multiprocessing.Pipe(duplex=False)
        with reader, writer:
            sending = threading.Thread(target=writer.send, args=(message,))
            sending.start()
            size = len(reader.recv_bytes())
            sending.join()
        self.messages.release(contents)
        return size

    def measure_descriptors(self, row: Row, cell: Cell) -> Figures:
        """Count the additional descriptors of sender or receiver for each tensor."""
        peer = self.peer(cell.start_method)
        sends = row.what == "sender"
        count = open_descriptors if sends else lambda: peer.ask("descriptors")
        before = count()
        contents = self.tensors(row.nbytes, row.count)
        over = replace(cell, channel=self.implementation.channels[0])
        peer.exchange(self.messages, contents, row, over)
        after = count()
        peer.ask("drop")
        self.messages.release(contents)
        return (after - before) / row.count, None

    # What needs no channel

    def measure_first_share(self, row: Row, cell: Cell) -> Figures:
        """Time the move to shared memory, and a copy between existing pages."""
        share = [self.time_share(row, cell) for _ in range(row.count)]
        source, target = bytearray(b"\x01" * row.nbytes), bytearray(row.nbytes)
        target[:] = source
        floor = [time_copy(source, target) for _ in range(row.count)]
        return median(share) * US_PER_SECOND, median(floor) * US_PER_SECOND

    def time_share(self, row: Row, cell: Cell) -> float:
        """Share a tensor with all pages written, and verify its values."""
        tensor = self.operations.make([0], (1,), "uint8")
        self.operations.resize(tensor, row.nbytes)
        self.operations.array(tensor)[:] = 5
        began = perf_counter()
        self.operations.share(tensor)
        seconds = perf_counter() - began
        total = int(self.operations.array(tensor).sum(dtype="int64"))
        if not self.operations.is_shared(tensor) or total != 5 * row.nbytes:
            raise WrongValue(f"in {cell} the tensor is not shared or its values are")
        self.operations.release(tensor)
        return seconds

    def measure_child_start(self, row: Row, cell: Cell) -> Figures:
        """Time a child of the implementation, and one of the standard library."""
        tensors = self.tensors(row.nbytes, 1 if row.what else 0)
        arguments = [self.operations.encode(tensor) for tensor in tensors]
        taken = time_child(self.context(cell.start_method), arguments, cell)
        plain = [b"\x01" * row.nbytes for _ in arguments]
        floor = time_child(multiprocessing.get_context(cell.start_method), plain, cell)
        self.messages.release(tensors)
        return taken * US_PER_SECOND, floor * US_PER_SECOND


def processor_times(pattern: str) -> dict[int, float]:
    """Return the processor time of each manager in seconds, by pid.

    The managers are those descendants of the parent of this process whose command line
    matches the pattern. The parent adopts orphans.
    """
    found = {}
    for pid in process_tree.descendants(os.getppid()) if pattern else ():
        with suppress(OSError):  # it has ended
            if re.search(pattern, process_tree.command(pid)):
                found[pid] = clock_gettime(processor_clock(pid))
    return found


def processor_clock(pid: int) -> int:
    """Return the clock of a process, as clock_getcpuclockid(3) computes it."""
    return ~pid << 3 | 2


def time_copy(source: bytearray, target: bytearray) -> float:
    """Return the seconds for a copy of memory."""
    view = memoryview(target)
    began = perf_counter()
    view[:] = source
    return perf_counter() - began


def time_child(context: Any, arguments: list[Any], cell: Cell) -> float:
    """Return the seconds from creating a process to its first message."""
    began = perf_counter()
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=send_argument_count, args=(writer, *arguments))
    process.start()
    writer.close()  # so that a failed child causes an EOFError here
    count = reader.recv()
    seconds = perf_counter() - began
    process.join(JOIN_TIMEOUT)
    reader.close()
    if count != len(arguments):
        raise WrongValue(
            f"in {cell} a child with {len(arguments)} arguments saw {count}"
        )
    return seconds
