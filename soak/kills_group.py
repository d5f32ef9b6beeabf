"""The group of `kills.py`: an owner and its peers, which work in a ring under load.

Member 0 is the owner: it makes the channels and starts the others. The channel of
member `i` leads to the next member. Each member works on order of the controller: it
makes tensors and sends them, verifies received tensors, forwards some of them, keeps
some, verifies these again, and drops them. A seed decides everything.

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
from patterns import HEADER, KEYS, WrongValue, make, verify
from sharedtensor import SharedTensorError, Tensor
from subjects import break_reference, is_empty, make_channel, receive, send

EXPECTED = (
    SharedTensorError,
    EOFError,
    BrokenPipeError,
    ConnectionResetError,
    queue.Empty,
)
OPERATIONS = {"take": 5, "make": 2, "look": 2, "drop": 1, "resend": 1}
FORWARDED = 0.4
KEPT_AT_MOST = 8
LONGEST = 20_000  # elements
LONGEST_ORDER = 1 << 16
DRAINED_AT_MOST = 100_000  # messages, so that a channel that is broken ends

Payload = list[Tensor]


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

    # Talking with the controller

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
            elif request["do"] == "drain":
                self.drain()
            else:
                self.work(request)

    def clear(self) -> None:
        """Reset the counts."""
        self.counts: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.faults: list[str] = []

    def work(self, request: dict[str, Any]) -> None:
        """Perform a number of operations and report; announce when a kill may come.

        The first operation shares a tensor, so that each member has used a manager.
        """
        self.clear()
        self.choose = random.Random(request["seed"])
        for number in range(request["operations"]):
            if number == request.get("here"):
                self.say(here=number)
            kinds, weights = list(OPERATIONS), list(OPERATIONS.values())
            (kind,) = self.choose.choices(kinds, weights) if number else ("make",)
            self.perform(kind)
        self.report()

    def drain(self) -> None:
        """Receive the messages that are there, and report."""
        self.clear()
        for _ in range(DRAINED_AT_MOST):
            if is_empty(self.ring[self.place - 1]):
                break
            self.perform("accept")
        self.report()

    def report(self) -> None:
        """Tell the controller what was done."""
        gc.collect()
        self.say(counts=self.counts, errors=self.errors, faults=self.faults[:3])

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

    # Operations

    def do_make(self) -> None:
        """Make a message and send it; keep it or drop it."""
        payload = [self.tensor() for _ in range(self.choose.choice((1, 1, 1, 3)))]
        how = self.choose.random()
        if how < 0.2:
            payload.append(payload[0][1:])
        elif how < 0.4:
            payload[0].requires_grad_().grad = make(
                verify(payload[0]), payload[0].numel()
            )
        self.send(payload)
        self.keep(payload)

    def tensor(self) -> Tensor:
        """Return a tensor that describes itself, of a small or large size."""
        length = HEADER + int(LONGEST ** self.choose.random())
        return make(self.choose.randrange(KEYS), length)

    def do_accept(self) -> Payload | None:
        """Receive a message if there is one, and verify it."""
        payload = self.receive()
        if payload is not None:
            self.counts["received"] += 1
            self.verify(payload)
        return payload

    def do_take(self) -> None:
        """Receive a message if there is one, verify it, and forward it or not."""
        payload = self.do_accept()
        if payload is None:
            return
        if self.choose.random() < FORWARDED:
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

    def keep(self, payload: Payload) -> None:
        """Keep a message, or drop it."""
        if self.choose.random() < 0.5:
            self.kept = [*self.kept, payload][-KEPT_AT_MOST:]

    def verify(self, payload: Payload) -> None:
        """Raise `WrongValue` unless all tensors of a message are right."""
        for tensor in payload:
            if tensor.storage_offset() == 0:
                key = verify(tensor)
                if tensor.grad is not None:
                    verify(tensor.grad, key)
            elif tensor.storage is not payload[0].storage:
                raise WrongValue("A view is over other memory than its base.")
        self.counts["verified"] += len(payload)

    # Channels

    def send(self, payload: Payload) -> None:
        """Send to the next member."""
        send(self.ring[self.place], payload)

    def receive(self) -> Payload | None:
        """Receive from the member before, without waiting; None if there is nothing.

        No other process reads this channel: a replacement starts after its predecessor
        has ended.
        """
        channel = self.ring[self.place - 1]
        return None if is_empty(channel) else receive(channel)


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
