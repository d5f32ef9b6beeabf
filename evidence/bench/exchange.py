"""The exchange of messages between owner and peer that the benchmark measures.

The owner asks over a separate control pipe. The peer receives as many messages as the
owner says, keeps or drops them, and finally returns the sum of what it read. Questions
and sums are not timed.

A message is bytes (the floor), a tensor, or a list or dict of tensors. The peer reads a
message after the timed part. It reads a tensor within the timed part only if it drops
the tensor at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from statistics import median
from time import perf_counter, process_time
from typing import Any

from sharedtensor_conformance.adapters import loader
from sharedtensor_conformance.harness.remote.channels import PairChannels

from bench.rows import Cell, Row

OWNER, PEER = "owner", "peer"
JOIN_TIMEOUT = 30.0


class WrongValue(Exception):
    """The received values differ from the sent ones; the message is one sentence."""


class Messages:
    """Makes messages of tensors, and reads and releases what arrives."""

    def __init__(self, operations: Any) -> None:
        self.operations = operations

    def encoded(self, content: Any) -> Any:
        """Return a message with its tensors encoded."""
        return _with_each(content, self.operations.encode)

    def decoded(self, message: Any) -> Any:
        """Return a received message with its tensors decoded."""
        return _with_each(message, self.operations.decode)

    def total(self, *contents: Any) -> float:
        """Return the sum of the first elements of all tensors, or of first bytes."""
        return float(sum(self._first(part) for part in _parts_of(contents)))

    def _first(self, part: Any) -> Any:
        return part[0] if isinstance(part, bytes) else self.operations.read(part, (0,))

    def release(self, contents: list[Any]) -> None:
        """Release the tensors of some messages, and forget these."""
        for part in _parts_of(contents):
            if not isinstance(part, bytes):
                self.operations.release(part)
        contents.clear()


def _with_each(content: Any, change: Callable[[Any], Any]) -> Any:
    """Return content with each of its tensors changed; bytes stay as they are."""
    match content:
        case bytes():
            return content
        case list():
            return [change(part) for part in content]
        case dict():
            return {name: change(part) for name, part in content.items()}
    return change(content)


def _parts_of(contents: Sequence[Any]) -> list[Any]:
    """Return the tensors in some messages, and those messages that are bytes."""
    parts: list[Any] = []
    for content in contents:
        values = content.values() if isinstance(content, dict) else content
        parts += values if isinstance(content, dict | list) else [content]
    return parts


def serve(link: PairChannels, control: Any, implementation: str, strategy: str) -> None:
    """Run the peer until the owner sends None."""
    operations = loader.load_operations(implementation)
    operations.enter_child(strategy)
    link.close_other_ends(PEER)
    receiver = Receiver(link, Messages(operations))
    control.send(True)
    with suppress(EOFError, BrokenPipeError):  # the owner has ended, and reports why
        while (question := control.recv()) is not None:
            action, *arguments = question
            control.send(getattr(receiver, action)(*arguments))


class Receiver:
    """The receiving side of every exchange."""

    def __init__(self, link: PairChannels, messages: Messages) -> None:
        self.link = link
        self.messages = messages
        self.kept: list[Any] = []

    def receive(
        self, channel: str, count: int, answered: bool, keeps: bool
    ) -> tuple[float, float]:
        """Receive messages; return the sum of their values and the processor time."""
        own, answers = self.link.of(OWNER, channel), self.link.of(PEER, channel)
        total, kept, began = 0.0, [], process_time()
        for _ in range(count):
            content = self.messages.decoded(own.get())
            if keeps:
                kept.append(content)
            else:
                total += self.messages.total(content)
            del content  # before the answer, because the drop is part of the round trip
            if answered:
                answers.put(True)
        used = process_time() - began
        if not answered:
            answers.put(True)
        self.kept += kept
        return total + self.messages.total(*kept), used

    def drop(self) -> None:
        """Drop all kept messages."""
        self.messages.release(self.kept)

    def descriptors(self) -> int:
        """Return how many descriptors the peer has open."""
        return open_descriptors()


class PeerHandle:
    """The owner's end of a peer: the channels to it, and the questions."""

    def __init__(
        self, context: Any, name: str, strategy: str, channels: tuple[str, ...]
    ) -> None:
        self.link = PairChannels(context, OWNER, PEER, channels)
        self.control, peer_end = context.Pipe()
        arguments = (self.link, peer_end, name, strategy)
        self.process = context.Process(target=serve, args=arguments, daemon=True)
        self.process.start()
        peer_end.close()
        self.link.close_other_ends(OWNER)
        self.control.recv()

    def ask(self, action: str, *arguments: Any) -> Any:
        """Return the answer of a method of the `Receiver`."""
        self.control.send((action, *arguments))
        return self.control.recv()

    def exchange(
        self, messages: Messages, contents: list[Any], row: Row, cell: Cell
    ) -> tuple[float, float]:
        """Send messages, and verify what the peer read.

        Returns:
            The seconds for a message (the median if each is answered, else the mean),
            and the processor time of both sides in seconds.

        Raises:
            WrongValue: other values arrived.
        """
        total, channel = messages.total(*contents), cell.channel
        self.control.send(("receive", channel, len(contents), row.answered, row.keeps))
        began = process_time()
        seconds = self._send(messages, contents, row.answered, channel)
        used = process_time() - began
        if not row.answered:
            self.link.of(PEER, channel).get()
        seconds.append(perf_counter())
        read, used_by_peer = self.control.recv()
        if read != total:
            raise WrongValue(
                f"in {cell} the first elements of {len(contents)} messages add up to "
                f"{total:g} where they were sent and to {read:g} where they arrived"
            )
        return _for_each(seconds, row.answered), used + used_by_peer

    def _send(
        self, messages: Messages, contents: list[Any], answered: bool, channel: str
    ) -> list[float]:
        """Send messages; return the time before each of them."""
        put = self.link.of(OWNER, channel).put
        get, times = self.link.of(PEER, channel).get, []
        for content in contents:
            times.append(perf_counter())
            put(messages.encoded(content))
            if answered:
                get()
        return times


def _for_each(times: list[float], answered: bool) -> float:
    """Return the seconds for a message, from the times at which each began or ended."""
    if answered:
        return median(after - before for before, after in pairwise(times))
    return (times[-1] - times[0]) / (len(times) - 1)


def open_descriptors() -> int:
    """Return the number of open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))
