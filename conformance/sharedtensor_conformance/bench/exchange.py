"""What owner and peer do with one another while they are measured.

The owner sends an order over a control pipe of its own; the peer receives as many
messages as the order says, holds or drops what arrives, and at the end tells what it
has read. Orders and sums are not timed.

A message is bytes (the floor), a tensor, or a list or dict of tensors. What arrived is
read after the timed part; only a tensor that the receiver drops at once is read in it.
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
    """What the peer is to do: receive, drop, or tell what that has cost it.

    It is asked for the descriptors that it has open (``descriptors``), and for the
    seconds of processor time in which it received last (``processor``).
    """

    do: str
    channel: str = ""
    count: int = 0
    round_trip: bool = True
    keeps: bool = True


def serve(link: PairChannels, control: Any, implementation: str, strategy: str) -> None:
    """Be the peer until the owner says that it was enough."""
    operations = loader.load_operations(implementation)
    operations.enter_child(strategy)
    link.enter(PEER)
    peer = Peer(link, operations)
    control.send(True)
    with suppress(EOFError, BrokenPipeError):  # the owner has gone, and says why
        while (order := control.recv()) is not None:
            control.send(peer.carry_out(order))


class Peer:
    """The receiving side of every exchange."""

    def __init__(self, link: PairChannels, operations: Any) -> None:
        self.link = link
        self.operations = operations
        self.kept: list[Any] = []
        self.used = 0.0

    def carry_out(self, order: Order) -> float:
        """Do what an order says and return what came of it."""
        actions: dict[str, Callable[[Order], float]] = {
            "receive": self.receive,
            "let go": self.let_go,
            "descriptors": lambda order: open_descriptors(),
            "processor": lambda order: self.used,
        }
        return actions[order.do](order)

    def receive(self, order: Order) -> float:
        """Receive the messages of an order; return the sum of what is in them."""
        seen, kept, began = 0.0, [], process_time()
        for _ in range(order.count):
            content = opened(self.link.get(PEER, order.channel), self.operations)
            if order.keeps:
                kept.append(content)
            else:
                seen += total_of(content, self.operations)
            del content  # before the answer: dropping is part of the round trip
            if order.round_trip:
                self.link.put(PEER, order.channel, True)
        self.used = process_time() - began
        if not order.round_trip:
            self.link.put(PEER, order.channel, True)
        self.kept += kept
        return seen + sum(total_of(content, self.operations) for content in kept)

    def let_go(self, order: Order) -> float:
        """Drop all that is kept."""
        for content in self.kept:
            release(content, self.operations)
        self.kept.clear()
        return 0.0


def opened(message: Any, operations: Any) -> Any:
    """Return a received message with its tensors decoded."""
    if isinstance(message, bytes):
        return message
    if isinstance(message, list):
        return [operations.decode(part) for part in message]
    if isinstance(message, dict):
        return {name: operations.decode(part) for name, part in message.items()}
    return operations.decode(message)


def closed(content: Any, operations: Any) -> Any:
    """Return a message with the tensors of `content` encoded."""
    if isinstance(content, bytes):
        return content
    if isinstance(content, list):
        return [operations.encode(tensor) for tensor in content]
    if isinstance(content, dict):
        return {name: operations.encode(tensor) for name, tensor in content.items()}
    return operations.encode(content)


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
    """Give up the tensors of a message; the caller forgets them."""
    if not isinstance(content, bytes):
        for tensor in tensors_of(content):
            operations.release(tensor)


def open_descriptors() -> int:
    """Return how many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))
