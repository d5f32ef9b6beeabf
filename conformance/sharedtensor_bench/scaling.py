"""Measures how the cost of a message grows with live tensors, processes and size.

It times the round trip of a tensor over a pipe, with forked peers.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

from sharedtensor_bench import exchange
from sharedtensor_bench.exchange import Order
from sharedtensor_bench.measuring import (
    US_PER_SECOND,
    WARM_UP,
    Measurer,
    PeerHandle,
)
from sharedtensor_bench.rows import KIB, MIB, ROWS, Cell

SIZES: dict[str, tuple[int, ...]] = {
    "tensors": (10, 100, 1000, 10_000, 30_000),
    "processes": (1, 2, 4, 8, 16, 32),
    "size": (4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB),
}
NEEDS = {"tensors": ("share",), "processes": (), "size": ("resize", "share")}
TITLES = {
    "tensors": "live shared tensors",
    "processes": "processes",
    "size": "size of the tensor, bytes",
}
RESERVED = 200  # descriptors and mappings for everything else
SAMPLED = 10  # tensors used to count the descriptors of each tensor
CELL = Cell("new-4B-round-trip", "pipe", "fork")
COUNT = 30


class ScalingMeasurer:
    """Measures the cost of a message for one owner."""

    def __init__(self, measurer: Measurer) -> None:
        self.measurer = measurer
        self.operations = measurer.operations

    def measure(self, what: str, size: int) -> float | None:
        """Return the microseconds of a round trip, or None if a limit is exceeded."""
        measured: float | None = getattr(self, f"measure_{what}")(size)
        return measured

    def measure_tensors(self, count: int) -> float | None:
        """Time a new tensor while the owner has `count` shared ones."""
        before = exchange.open_descriptors()
        live = self.make_shared(SAMPLED)
        each = (exchange.open_descriptors() - before) / SAMPLED
        fits = count + RESERVED < max_tensors(each)
        live += self.make_shared(count - SAMPLED) if fits else []
        taken, _ = self.measurer.measure_messages(ROWS[CELL.row], CELL)
        for tensor in live:
            self.operations.release(tensor)
        return taken if fits else None

    def make_shared(self, count: int) -> list[Any]:
        """Return `count` new shared tensors."""
        tensors = [self.measurer.tensor(4, number) for number in range(count)]
        for tensor in tensors:
            self.operations.share(tensor)
        return tensors

    def measure_processes(self, count: int) -> float | None:
        """Time a shared tensor that each of `count` peers holds."""
        measurer = self.measurer
        arguments = measurer.name, measurer.strategy, measurer.channels
        context = measurer.context(CELL.start_method)
        peers = [PeerHandle(context, *arguments) for _ in range(count)]
        seconds = self.resend(peers, measurer.tensor(4 * KIB, 7))
        for peer in peers:
            peer.end()
        return seconds * US_PER_SECOND

    def measure_size(self, nbytes: int) -> float | None:
        """Time a shared tensor of `nbytes` that the receiver holds."""
        tensor = self.operations.make([7], (1,), "uint8")
        self.operations.resize(tensor, nbytes)
        self.operations.write(tensor, (0,), 7)
        self.operations.share(tensor)
        peer = self.measurer.peer(CELL.start_method)
        taken = self.resend([peer], tensor) * US_PER_SECOND
        self.operations.release(tensor)
        return taken

    def resend(self, peers: list[PeerHandle], tensor: Any) -> float:
        """Return the seconds of a round trip of a tensor that all receivers hold."""
        order = Order("receive", CELL.channel, WARM_UP)
        for peer in peers:
            self.measurer.send(peer, order, [tensor] * WARM_UP, CELL)
        order = Order("receive", CELL.channel, COUNT)
        batch = [tensor] * COUNT
        seconds = [self.measurer.send(peer, order, batch, CELL) for peer in peers]
        for peer in peers:
            peer.order(Order("drop"))
        return fmean(seconds)


def max_tensors(each: float) -> float:
    """Return how many tensors can be shared, with `each` descriptors for a tensor.

    The maximum number of mappings limits this, too, since each tensor has one.
    """
    limit = float("inf")
    with suppress(OSError, ValueError):
        limit = int(Path("/proc/sys/vm/max_map_count").read_text())
    if each > 0:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = min(limit, (descriptors - exchange.open_descriptors()) / each)
    return limit
