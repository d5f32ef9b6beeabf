"""The exchange of messages between owner and peer that the benchmark measures.

The owner sends an order over a separate control pipe. The peer receives as many
messages as the order says, keeps or drops them, and finally returns the sum of what it
read. Orders and sums are not timed.

A message is bytes (the floor), a tensor, or a list or dict of tensors. The peer reads a
message after the timed part. It reads a tensor within the timed part only if it drops
the tensor at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import process_time
from typing import Any

from sharedtensor_conformance.adapters import loader
from sharedtensor_conformance.harness.channels import PairChannels

OWNER, PEER = "owner", "peer"


@dataclass(frozen=True)
class Order:
    """An order for the peer: to receive or drop messages, or to report a cost.

    The costs are the number of its open descriptors (``descriptors``) and the processor
    time of its last reception in seconds (``processor``).
    """

    action: str
    channel: str = ""
    count: int = 0
    round_trip: bool = True
    keeps: bool = True


def serve(link: PairChannels, control: Any, implementation: str, strategy: str) -> None:
    """Run the peer until the owner sends None."""
    operations = loader.load_operations(implementation)
    operations.enter_child(strategy)
    link.close_other_ends(PEER)
    peer = Peer(link, operations)
    control.send(True)
    with suppress(EOFError, BrokenPipeError):  # the owner has ended, and reports why
        while (order := control.recv()) is not None:
            control.send(peer.execute(order))


class Peer:
    """The receiving side of every exchange."""

    def __init__(self, link: PairChannels, operations: Any) -> None:
        self.link = link
        self.operations = operations
        self.kept: list[Any] = []
        self.processor_seconds = 0.0

    def execute(self, order: Order) -> float:
        """Execute an order and return its result."""
        actions: dict[str, Callable[[Order], float]] = {
            "receive": self.receive,
            "drop": self.drop_kept,
            "descriptors": lambda order: open_descriptors(),
            "processor": lambda order: self.processor_seconds,
        }
        return actions[order.action](order)

    def receive(self, order: Order) -> float:
        """Receive the messages of an order; return the sum of their values."""
        total, kept, began = 0.0, [], process_time()
        for _ in range(order.count):
            content = decode_message(
                self.link.get(PEER, order.channel), self.operations
            )
            if order.keeps:
                kept.append(content)
            else:
                total += total_of(content, self.operations)
            del content  # before the answer, because the drop is part of the round trip
            if order.round_trip:
                self.link.put(PEER, order.channel, True)
        self.processor_seconds = process_time() - began
        if not order.round_trip:
            self.link.put(PEER, order.channel, True)
        self.kept += kept
        return total + sum(total_of(content, self.operations) for content in kept)

    def drop_kept(self, order: Order) -> float:
        """Drop all kept messages."""
        for content in self.kept:
            release(content, self.operations)
        self.kept.clear()
        return 0.0


def decode_message(message: Any, operations: Any) -> Any:
    """Return a received message with its tensors decoded."""
    return _with_each(message, operations.decode)


def encode_message(content: Any, operations: Any) -> Any:
    """Return a message with the tensors of `content` encoded."""
    return _with_each(content, operations.encode)


def _with_each(content: Any, change: Callable[[Any], Any]) -> Any:
    """Return content with each of its parts changed; bytes stay as they are."""
    if isinstance(content, bytes):
        return content
    if isinstance(content, list):
        return [change(part) for part in content]
    if isinstance(content, dict):
        return {name: change(part) for name, part in content.items()}
    return change(content)


def tensors_of(content: Any) -> list[Any]:
    """Return the tensors in a message."""
    if isinstance(content, dict):
        return list(content.values())
    return content if isinstance(content, list) else [content]


def total_of(content: Any, operations: Any) -> float:
    """Return the sum of the first elements of all tensors, or the first byte."""
    if isinstance(content, bytes):
        return float(content[0])
    return float(sum(operations.read(t, (0,)) for t in tensors_of(content)))


def release(content: Any, operations: Any) -> None:
    """Release the tensors of a message; the caller does not use them again."""
    if not isinstance(content, bytes):
        for tensor in tensors_of(content):
            operations.release(tensor)


def open_descriptors() -> int:
    """Return the number of open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))
