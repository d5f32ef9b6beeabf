"""Measures the rows, inside the owner process.

Each measurement returns a figure for the implementation and, if the row has one, for
the *floor*, which is measured right after it. The floor is one of these: bytes of the
size of the pickled message, over the same channel between the same processes; a memory
copy into existing pages; or a child process of the standard library. The figure of a
batch is the median over its messages if each message is answered, else their mean.

All received values are verified.
"""

from __future__ import annotations

import ctypes
import gc
import math
import multiprocessing
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from statistics import median
from time import clock_gettime, perf_counter, process_time
from typing import Any

from sharedtensor_conformance.adapter import Layout
from sharedtensor_conformance.harness import process_tree
from sharedtensor_conformance.harness.channels import PairChannels

from sharedtensor_bench import exchange
from sharedtensor_bench.child import send_argument_count
from sharedtensor_bench.exchange import OWNER, Order, encode_message
from sharedtensor_bench.rows import (
    ROWS,
    TENSOR_COUNT,
    VIEW_COUNT,
    Cell,
    Row,
)

US_PER_SECOND = 1e6
WARM_UP = 3
JOIN_TIMEOUT = 30.0
VALUE_CYCLE = 100  # the first elements of tensors are 1 to this, in turn

Figures = tuple[float, float | None]
"""A figure and its floor."""


class WrongValue(Exception):
    """The received values differ from the sent ones; the message is one sentence."""


class PeerHandle:
    """The owner's end of the connection to a peer: channels, and orders to it.

    `processor_seconds` is the processor time of the owner's last sending, in seconds.
    """

    def __init__(
        self, context: Any, name: str, strategy: str, channels: tuple[str, ...]
    ) -> None:
        self.link = PairChannels(context, OWNER, exchange.PEER, channels)
        self.control, peer_end = context.Pipe()
        arguments = (self.link, peer_end, name, strategy)
        target = exchange.serve
        self.process = context.Process(target=target, args=arguments, daemon=True)
        self.process.start()
        self.processor_seconds = 0.0
        peer_end.close()
        self.link.close_other_ends(OWNER)
        self.control.recv()

    def order(self, order: Order) -> float:
        """Send an order and return its result."""
        self.control.send(order)
        answer: float = self.control.recv()
        return answer

    def exchange(
        self, order: Order, contents: list[Any], encode: Callable[[Any], Any]
    ) -> float:
        """Send the messages of an order.

        Returns:
            The seconds for a message: the median if each is answered, otherwise the
            mean.
        """
        self.control.send(order)
        put, get, channel = self.link.put, self.link.get, order.channel
        seconds, began, used = [], perf_counter(), process_time()
        for content in contents:
            sent = perf_counter()
            put(OWNER, channel, encode(content))
            if order.round_trip:
                get(OWNER, channel)
                seconds.append(perf_counter() - sent)
        self.processor_seconds = process_time() - used
        if order.round_trip:
            return median(seconds)
        get(OWNER, channel)
        return (perf_counter() - began) / len(contents)

    def end(self) -> None:
        """End the peer."""
        self.control.send(None)
        self.process.join(JOIN_TIMEOUT)
        self.link.close()


class Measurer:
    """An owner that measures one implementation under one strategy."""

    def __init__(self, name: str, strategy: str, implementation: Any, operations: Any):
        self.name = name
        self.strategy = strategy
        self.managers = implementation.manager_pattern
        self.channels = implementation.channels
        self.operations = operations
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
            context = self.context(start_method)
            arguments = self.name, self.strategy, self.channels
            self.peers[start_method] = PeerHandle(context, *arguments)
        return self.peers[start_method]

    # Messages

    def measure_messages(self, row: Row, cell: Cell) -> Figures:
        """Time messages with tensors, and messages with the same number of bytes."""
        taken = self.exchange(row, cell, lambda count: self.contents(row, count))
        filler = self.filler(row)
        floor = self.exchange(row, cell, lambda count: [filler] * count)
        return taken * US_PER_SECOND, floor * US_PER_SECOND

    def exchange(
        self, row: Row, cell: Cell, contents_of: Callable[[int], list[Any]]
    ) -> float:
        """Send a batch, after a few messages that are not timed, and verify it."""
        contents = contents_of(WARM_UP + row.count)
        first, batch = contents[:WARM_UP], contents[WARM_UP:]
        order = Order("receive", cell.channel, WARM_UP, True, row.keeps)
        peer = self.peer(cell.start_method)
        self.send(peer, order, first, cell)
        order = replace(order, count=row.count, round_trip=row.round_trip)
        seconds = self.send(peer, order, batch, cell)
        peer.order(Order("drop"))
        for content in contents:
            exchange.release(content, self.operations)
        return seconds

    def send(
        self, peer: PeerHandle, order: Order, contents: list[Any], cell: Cell
    ) -> float:
        """Send messages, verify what the peer read, and return the seconds for each."""
        total = sum(exchange.total_of(content, self.operations) for content in contents)
        operations = self.operations
        seconds = peer.exchange(
            order, contents, lambda c: encode_message(c, operations)
        )
        read = peer.control.recv()
        if read != total:
            raise WrongValue(
                f"in {cell} the first elements of {len(contents)} messages add up to "
                f"{total:g} where they were sent and to {read:g} where they arrived"
            )
        return seconds

    def contents(self, row: Row, count: int) -> list[Any]:
        """Return the messages of a batch."""
        match row.what:
            case "same":
                return [self.tensor(row.nbytes, 7)] * count
            case "many":
                return [
                    [self.tensor(row.nbytes, number) for number in range(TENSOR_COUNT)]
                    for _ in range(count)
                ]
            case "views":
                return [self.views(row.nbytes)] * count
        return [self.tensor(row.nbytes, number) for number in range(count)]

    def tensor(self, nbytes: int, number: int) -> Any:
        """Return a new float32 tensor whose first value depends on `number`."""
        values = [float(number % VALUE_CYCLE + 1)] + [0.0] * (nbytes // 4 - 1)
        return self.operations.make(values, (len(values),), "float32")

    def views(self, nbytes: int) -> dict[str, Any]:
        """Return views of one storage, by name."""
        each = nbytes // 4 // VIEW_COUNT
        values = [
            float(number // each % VALUE_CYCLE) for number in range(each * VIEW_COUNT)
        ]
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
        (content,) = self.contents(row, 1)
        reader, writer = self.operations.multiprocessing.Pipe(duplex=False)
        message = encode_message(content, self.operations)
        sending = threading.Thread(target=writer.send, args=(message,))
        sending.start()
        size = len(reader.recv_bytes())
        sending.join()
        reader.close()
        writer.close()
        exchange.release(content, self.operations)
        return size

    # Processor time

    def measure_processor(self, row: Row, cell: Cell) -> Figures:
        """Sum a message's processor time over all processes, from send to last drop.

        A manager may do its work later. All its work until the end of the floor's
        measurement counts, because messages of bytes do not use a manager.
        """
        filler = self.filler(row)
        # A batch that does not count: after only a few messages, times are 10 % higher.
        self.processor_time(self.contents(row, row.count), row, cell)
        before = processor_times(self.managers)
        taken = self.processor_time(self.contents(row, row.count), row, cell)
        floor = self.processor_time([filler] * row.count, row, cell)
        now = processor_times(self.managers)
        taken += sum(now[pid] - before.get(pid, 0) for pid in now)
        return taken / row.count * US_PER_SECOND, floor / row.count * US_PER_SECOND

    def processor_time(self, contents: list[Any], row: Row, cell: Cell) -> float:
        """Return the seconds that both sides used to send, receive and drop."""
        peer = self.peer(cell.start_method)
        order = Order("receive", cell.channel, row.count, row.round_trip, row.keeps)
        self.send(peer, order, contents, cell)
        used = peer.processor_seconds + peer.order(Order("processor"))
        began = process_time()
        for content in contents:
            exchange.release(content, self.operations)
        contents.clear()
        return used + process_time() - began

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
        array = self.operations.array(tensor)
        total = int(array.sum(dtype="int64"))
        if not self.operations.is_shared(tensor) or total != 5 * row.nbytes:
            raise WrongValue(f"in {cell} the tensor is not shared or its values are")
        del array
        self.operations.release(tensor)
        return seconds

    def measure_child_start(self, row: Row, cell: Cell) -> Figures:
        """Time a child of the implementation, and one of the standard library."""
        tensors = [self.tensor(row.nbytes, 1)] if row.what else []
        arguments = [self.operations.encode(tensor) for tensor in tensors]
        taken = time_child(self.context(cell.start_method), arguments, cell)
        plain = [b"\x01" * row.nbytes for _ in arguments]
        floor = time_child(multiprocessing.get_context(cell.start_method), plain, cell)
        for tensor in tensors:
            self.operations.release(tensor)
        return taken * US_PER_SECOND, floor * US_PER_SECOND

    def measure_descriptors(self, row: Row, cell: Cell) -> Figures:
        """Count the additional descriptors of sender or receiver for each tensor."""
        peer, channel = self.peer(cell.start_method), self.channels[0]
        with counting_descriptors(peer, row) as before:
            contents = [self.tensor(row.nbytes, n) for n in range(row.count)]
            order = Order("receive", channel, row.count)
            self.send(peer, order, contents, cell)
            after = descriptors_of(peer, row.what)
        for content in contents:
            exchange.release(content, self.operations)
        return (after - before) / row.count, None


def processor_times(pattern: str) -> dict[int, float]:
    """Return the processor time of each manager in seconds, by pid.

    The managers are those descendants of the parent of this process whose command line
    matches the pattern. The parent adopts orphans.
    """
    if not pattern:
        return {}
    found = {}
    for pid in process_tree.descendants(os.getppid()):
        with suppress(OSError):  # it has ended
            if re.search(pattern, process_tree.command(pid)):
                found[pid] = processor_time_of(pid)
    return found


def processor_time_of(pid: int) -> float:
    """Return the processor time of a process in seconds, by clock_getcpuclockid(3).

    Raises:
        OSError: the process has ended.
    """
    clock = ctypes.c_int()
    if error := ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock)):
        raise OSError(error, os.strerror(error))
    return clock_gettime(clock.value)


def descriptors_of(peer: PeerHandle, role: str) -> float:
    """Return how many descriptors the sender or the receiver has open."""
    if role == "sender":
        return exchange.open_descriptors()
    return peer.order(Order("descriptors"))


@contextmanager
def counting_descriptors(peer: PeerHandle, row: Row) -> Iterator[float]:
    """Yield the number of open descriptors; then make the peer drop everything."""
    yield descriptors_of(peer, row.what)
    peer.order(Order("drop"))


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
    if count != len(arguments) or math.isnan(seconds):
        raise WrongValue(
            f"in {cell} a child with {len(arguments)} arguments saw {count}"
        )
    return seconds
