"""A group of processes that share tensors and send them in a ring, on orders.

Member 0 is the owner: it makes the channels and starts the others. The channel of
member `i` leads to the next member. A controller (see `group`) orders each member to
work: it makes messages of all kinds and sends them, verifies received messages, writes
into some and forwards them, keeps some, verifies these again, and drops them. A seed
decides everything.

Any member may be killed at any moment. So errors of the package's own hierarchy, and
errors that say that another process has ended, are expected. Any other error is a
fault, and so is a wrong value.

Argument: a JSON object with `address`, `strategy`, `start_method`, `channels`,
`mutant`.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import queue
import random
import signal
import socket
import sys
import traceback
from collections import Counter
from typing import Any

import sharedtensor.multiprocessing as mp
from patterns import HEADER, KEYS, WRITTEN, WrongValue, make, verify
from sharedtensor import NonLeafError, SharedTensorError

EXPECTED = (
    SharedTensorError,
    EOFError,
    BrokenPipeError,
    ConnectionResetError,
    queue.Empty,
)
OPERATIONS = {"take": 30, "make": 10, "look": 10, "drop": 5, "resend": 5, "refuse": 1}
KINDS = {"one": 8, "several": 4, "views": 4, "grad": 4, "bytes": 2, "many": 0.1}
COUNTS = {"several": 3, "many": 300}
FORWARDED = 0.4
EMPTY = 0.05  # of the tensors
KEPT_AT_MOST = 8
LONGEST = 20_000  # elements
BESIDE = bytes(100_000)  # do not fit into a packet
LONGEST_ORDER = 1 << 16
DRAINED_AT_MOST = 100_000  # messages, so that a channel that is broken ends

Payload = dict[str, Any]


class Member:
    """One place in the ring, and the process that currently fills it."""

    def __init__(self, config: dict[str, Any], place: int, ring: list[Any]) -> None:
        self.config, self.place, self.ring = config, place, ring
        self.kept: list[Payload] = []
        self.choose = random.Random(0)
        self.clear()
        self.controller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.controller.connect("\0" + config["address"])
        self.say(place=place)

    def say(self, **words: Any) -> None:
        """Send a message to the controller."""
        self.controller.send(json.dumps(words).encode())

    def serve(self) -> None:
        """Execute the controller's orders until it closes the connection."""
        while order := self.controller.recv(LONGEST_ORDER):
            request = json.loads(order)
            if request["do"] == "leave":
                return
            if request["do"] == "replace":
                start(self.config, request["vacant"], self.ring)
                continue
            self.clear()
            getattr(self, request["do"])(request)
            gc.collect()
            self.say(counts=self.counts, errors=self.errors, faults=self.faults[:3])

    def clear(self) -> None:
        """Reset the counts."""
        self.counts: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.faults: list[str] = []

    # Orders

    def work(self, request: dict[str, Any]) -> None:
        """Perform a number of operations; announce when a kill may come.

        The first operation shares a tensor, so that each member has used a manager.
        """
        self.choose = random.Random(request["seed"])
        for number in range(request["operations"]):
            if number == request.get("here"):
                self.say(here=number)
            self.perform(self.chosen(OPERATIONS) if number else "make")

    def flood(self, request: dict[str, Any]) -> None:
        """Fill the channel, a queue, which then starts the thread that writes."""
        payload = self.message("one")
        for _ in range(request["count"]):
            self.send(payload)

    def drain(self, request: dict[str, Any]) -> None:
        """Receive the messages that are there, and send none."""
        for _ in range(DRAINED_AT_MOST):
            if is_empty(self.ring[self.place - 1]):
                break
            self.perform("accept")

    def settle(self, request: dict[str, Any]) -> None:
        """Receive the messages that are there, and hold nothing afterwards."""
        self.drain(request)
        self.kept.clear()

    def perform(self, kind: str) -> None:
        """Perform one operation and count its result."""
        try:
            getattr(self, f"do_{kind}")()
        except EXPECTED as error:
            self.errors[type(error).__name__] += 1
        except WrongValue as error:
            self.faults.append(f"wrong value: {error}")
        except Exception:
            self.faults.append(f"unexpected: {traceback.format_exc(limit=-3)}")
        else:
            self.counts[kind] += 1

    def chosen(self, weights: dict[str, Any]) -> str:
        """Return one of the names, chosen by their weights."""
        (name,) = self.choose.choices(list(weights), list(weights.values()))
        return name

    # Operations

    def do_make(self) -> None:
        """Make a message and send it; keep it or drop it."""
        payload = self.message(self.chosen(KINDS))
        self.send(payload)
        self.keep(payload)

    def do_refuse(self) -> None:
        """Send a message that is refused; its resources have to be released."""
        payload = self.message("one")
        payload["result"] = payload["tensors"][0].requires_grad_() * 2
        try:
            self.send(payload)
        except NonLeafError:
            return
        raise WrongValue("A computed tensor that requires grad was sent.")

    def do_accept(self) -> Payload | None:
        """Receive a message if there is one, and verify it."""
        payload = self.receive()
        if payload is not None:
            self.counts["received"] += 1
            self.verify(payload)
            self.verify_place(payload)
        return payload

    def do_take(self) -> None:
        """Receive a message if there is one, verify it, and forward it or not."""
        payload = self.do_accept()
        if payload is None:
            return
        if self.choose.random() < FORWARDED:
            payload["tensors"][0].detach()[-1:] = WRITTEN
            payload["written"] = True
            self.send(payload)
        self.keep(payload)

    def do_look(self) -> None:
        """Verify kept messages again, whose makers may have ended meanwhile."""
        for payload in self.kept:
            self.verify(payload)

    def do_drop(self) -> None:
        """Drop a kept message."""
        if self.kept:
            self.kept.pop(self.choose.randrange(len(self.kept)))

    def do_resend(self) -> None:
        """Send a kept message."""
        if self.kept:
            self.send(self.choose.choice(self.kept))

    # Messages

    def message(self, kind: str) -> Payload:
        """Return a new message, not yet shared, with a description of its tensors."""
        longest = 16 if kind == "many" else LONGEST
        described = [
            (self.choose.randrange(KEYS), self.length(longest))
            for _ in range(COUNTS.get(kind, 1))
        ]
        tensors = [make(key, length) for key, length in described]
        payload = {"described": described, "tensors": tensors, "written": False}
        if kind == "views":
            payload["views"] = [tensors[0][1:], tensors[0][::2], tensors[0][:0]]
        elif kind == "grad":
            payload["grad"] = True
            tensors[0].requires_grad_().grad = make(*described[0])
        elif kind == "bytes":
            payload["bytes"] = BESIDE
        return payload

    def length(self, longest: int) -> int:
        """Return a length: sometimes 0, otherwise small and large equally often."""
        if self.choose.random() < EMPTY:
            return 0
        return HEADER + 1 + int(longest ** self.choose.random())

    def verify(self, payload: Payload) -> None:
        """Raise `WrongValue` unless a message is as its maker described it."""
        tensors, described = payload["tensors"], payload["described"]
        for tensor, (key, length) in zip(tensors, described, strict=True):
            verify(tensor, key, length)
        if payload["written"] and (tensors[0].numpy()[-1:] != WRITTEN).any():
            raise WrongValue("A write is not seen that was made before the send.")
        if any(v.storage is not tensors[0].storage for v in payload.get("views", ())):
            raise WrongValue("A view is over other memory than its base.")
        if "grad" in payload:
            if tensors[0].grad is None:
                raise WrongValue("A tensor arrived without its grad.")
            verify(tensors[0].grad, *described[0])
        if payload.get("bytes", BESIDE) != BESIDE:
            raise WrongValue("The bytes of a message have other values.")
        self.counts["verified"] += len(tensors)

    def verify_place(self, payload: Payload) -> None:
        """Raise `WrongValue` if this process holds the tensors elsewhere, too."""
        for held in self.kept:
            if held["described"] == payload["described"]:
                pairs = zip(held["tensors"], payload["tensors"], strict=True)
                if any(one.storage is not other.storage for one, other in pairs):
                    raise WrongValue("A tensor came back over other memory.")

    def keep(self, payload: Payload) -> None:
        """Keep a message, or drop it."""
        if self.choose.random() < 0.5:
            self.kept = [*self.kept, payload][-KEPT_AT_MOST:]

    def send(self, payload: Payload) -> None:
        """Send to the next member."""
        channel = self.ring[self.place]
        (channel[1].send if isinstance(channel, tuple) else channel.put)(payload)

    def receive(self) -> Payload | None:
        """Receive from the member before, without waiting; None if there is nothing.

        No other process reads this channel: a replacement starts after its predecessor
        has ended.
        """
        channel = self.ring[self.place - 1]
        if is_empty(channel):
            return None
        return channel[0].recv() if isinstance(channel, tuple) else channel.get()


def is_empty(channel: Any) -> bool:
    """Return whether a channel currently has no message."""
    if isinstance(channel, tuple):
        return not channel[0].poll()
    return bool(channel.empty())


def make_channel(context: Any, kind: str) -> Any:
    """Return a channel for one direction: a ``pipe``, ``queue`` or ``simple_queue``."""
    if kind == "pipe":
        return context.Pipe(duplex=False)
    return context.Queue() if kind == "queue" else context.SimpleQueue()


def break_reference(mutant: str) -> None:
    """Apply a mutant in this process, if one is given."""
    if mutant:
        from sharedtensor_conformance.mutants import registry

        registry.apply(mutant)


def start(config: dict[str, Any], place: int, ring: list[Any]) -> None:
    """Start the process that fills a place from now on."""
    context = mp.get_context(config["start_method"])
    context.Process(target=fill, args=(config, place, ring)).start()


def fill(config: dict[str, Any], place: int, ring: list[Any]) -> None:
    """Run the member in a place until the controller ends it or is gone."""
    faulthandler.register(signal.SIGUSR1)  # prints the stack of a hanging process
    break_reference(config["mutant"])
    Member(config, place, ring).serve()


def main(config: dict[str, Any]) -> None:
    """Run the owner: make the ring, start the peers, and work."""
    context = mp.get_context(config["start_method"])
    mp.set_sharing_strategy(config["strategy"])
    ring = [make_channel(context, kind) for kind in config["channels"]]
    for place in range(1, len(ring)):
        start(config, place, ring)
    fill(config, 0, ring)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
