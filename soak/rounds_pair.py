"""The owner and the peer of `rounds.py`, which share, send, receive and drop tensors.

Both use the same plan: the seed and the number of a round decide everything in it. They
synchronise over a pipe of the standard library; tensors go through the channels under
test. At the end of a round both hold nothing. At some of these points the owner stops
for a sample: it writes a line and waits for one.

Argument: a JSON object with the options of `rounds.py`.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sharedtensor.multiprocessing as mp
from patterns import HEADER, WrongValue, make, verify
from sharedtensor import NonLeafError
from subjects import GO_ON, THE_LAST, break_reference, make_channel, receive, send

CHANNELS = ("simple_queue", "queue", "pipe")
ROLES = ("owner", "peer")
ORDERS = ("in flight", "sender first", "receiver first")
KINDS = {
    "one": 8,
    "several": 4,
    "views": 4,
    "grad": 4,
    "returned": 4,
    "with bytes": 2,
    "refused": 2,
    "many": 0.1,
}
"""The kinds of messages with their weights; about one in 300 has 300 tensors."""

SEVERAL, MANY = 5, 300
LONGEST = 40_000  # elements of 8 bytes
BESIDE = 100_000  # bytes that do not fit into a packet
WRITTEN = -1.0

Payload = dict[str, Any]


@dataclass(frozen=True)
class Round:
    """The plan of one round."""

    number: int
    channel: str
    sender: str
    order: str
    kind: str
    lengths: tuple[int, ...]

    @classmethod
    def planned(cls, seed: int, number: int) -> Round:
        """Return the round with this number; channels and directions alternate."""
        choose = random.Random(f"{seed}/{number}")
        (kind,) = choose.choices(list(KINDS), list(KINDS.values()))
        counts = {"several": SEVERAL, "many": MANY}
        longest = 16 if kind == "many" else LONGEST
        return cls(
            number,
            CHANNELS[number % len(CHANNELS)],
            ROLES[number // len(CHANNELS) % len(ROLES)],
            choose.choice(ORDERS),
            kind,
            tuple(length(choose, longest) for _ in range(counts.get(kind, 1))),
        )

    def key(self, place: int) -> int:
        """Return the key of a tensor of this round."""
        return self.number * MANY + place


def length(choose: random.Random, longest: int) -> int:
    """Return a length: sometimes 0, otherwise small and large ones equally often."""
    if choose.random() < 0.05:
        return 0
    return max(HEADER + 2, int(longest ** choose.random()))


# Messages


def message_of(this: Round) -> Payload:
    """Return the message of a round, not yet shared."""
    tensors = [make(this.key(place), size) for place, size in enumerate(this.lengths)]
    payload: Payload = {"tensors": tensors}
    if this.kind == "views":
        payload["views"] = [tensors[0][1:], tensors[0][::2], tensors[0][:0]]
    elif this.kind == "grad":
        tensors[0].requires_grad_().grad = make(this.key(1), this.lengths[0])
    elif this.kind == "refused":
        payload["result"] = tensors[0].requires_grad_() * 2
    elif this.kind == "with bytes":
        payload["bytes"] = bytes(BESIDE)
    return payload


def verify_message(payload: Payload, this: Round) -> None:
    """Raise `WrongValue` unless the message is the planned one."""
    for place, tensor in enumerate(payload["tensors"]):
        verify(tensor, this.key(place))
        if tensor.numel() != this.lengths[place]:
            raise WrongValue(f"A tensor arrived with {tensor.numel()} elements.")
    for view in payload.get("views", []):
        if view.storage is not payload["tensors"][0].storage:
            raise WrongValue("A view arrived over other memory than its base.")
    if this.kind == "grad":
        grad = payload["tensors"][0].grad
        if grad is None:
            raise WrongValue("A tensor arrived without its grad.")
        verify(grad, this.key(1))
    if "bytes" in payload and payload["bytes"] != bytes(BESIDE):
        raise WrongValue("The bytes of a message arrived with other values.")


def write_into(payload: Payload) -> None:
    """Write the last element of the first tensor, if it has elements."""
    payload["tensors"][0].detach()[-1:] = WRITTEN


def verify_written(payload: Payload) -> None:
    """Raise `WrongValue` unless the write of the other process is visible here."""
    if (payload["tensors"][0].numpy()[-1:] != WRITTEN).any():
        raise WrongValue("A write by the receiver is not seen by the sender.")


# The two sides of a round


class Side:
    """One of the two processes: its channel ends, and its pipe to the other one."""

    def __init__(self, role: str, words: Any, channels: dict[Any, Any]) -> None:
        self.role, self.words, self.channels = role, words, channels

    def put(self, this: Round, payload: Payload) -> None:
        """Send on the channel of a round."""
        send(self.channels[this.sender, this.channel], payload)

    def get(self, this: Round) -> Payload:
        """Receive from the channel of a round."""
        payload: Payload = receive(self.channels[this.sender, this.channel])
        return payload

    def say(self, word: str) -> None:
        """Send a word to the other side, to synchronise."""
        self.words.send(word)

    def expect(self, word: str) -> None:
        """Wait for a word of the other side."""
        heard = self.words.recv()
        if heard != word:
            raise WrongValue(heard)

    def hears_the_last(self) -> bool:
        """Wait for the other side's answer whether this was the last round."""
        heard = self.words.recv()
        if heard not in (GO_ON, THE_LAST):
            raise WrongValue(heard)
        return bool(heard == THE_LAST)

    def run(self, this: Round) -> None:
        """Execute this side's part of a round; afterwards it holds nothing."""
        if this.kind == "refused":
            self.be_refused(this)
        elif this.sender == self.role:
            self.run_sender(this)
        else:
            self.run_receiver(this)

    def be_refused(self, this: Round) -> None:
        """Send a message that is refused; its resources have to be released."""
        if this.sender != self.role:
            return
        try:
            self.put(this, message_of(this))
        except NonLeafError:
            return
        raise WrongValue("A computed tensor that requires grad was sent.")

    def run_sender(self, this: Round) -> None:
        """Make and send a message, and drop it as planned."""
        payload = message_of(this)
        self.put(this, payload)
        if this.order == "in flight":
            del payload
            self.say("sent")
            self.expect("done")
            return
        self.say("sent")
        if this.kind == "returned":
            self.take_back(this, payload)
        if this.order == "sender first":
            self.expect("received")
            del payload
            self.say("dropped")
            self.expect("done")
        else:
            self.expect("done")
            verify_written(payload)

    def take_back(self, this: Round, payload: Payload) -> None:
        """Receive a tensor that this process sent; it has to use the same storage."""
        self.expect("returned")
        back = self.get(this)
        if back["tensors"][0].storage is not payload["tensors"][0].storage:
            raise WrongValue("A tensor came back over other memory than its own.")

    def run_receiver(self, this: Round) -> None:
        """Receive and verify; verify again after the sender has dropped; drop."""
        self.expect("sent")
        payload = self.get(this)
        verify_message(payload, this)
        if this.kind == "returned" and this.order != "in flight":
            self.put(this, payload)
            self.say("returned")
        if this.order == "sender first":
            self.say("received")
            self.expect("dropped")
            verify_message(payload, this)
        write_into(payload)
        del payload
        self.say("done")


def numbers(options: dict[str, Any]) -> Iterator[tuple[Round, bool]]:
    """Yield the rounds, each with whether a stop follows it."""
    for number in range(1, options["rounds"] + 1):
        stops = number % options["every"] == 0 or number == options["rounds"]
        yield Round.planned(options["seed"], number), stops


def run_peer(words: Any, channels: dict[Any, Any], options: dict[str, Any]) -> None:
    """Run the peer; send an error to the owner in place of the next word."""
    break_reference(options["mutant"])
    side = Side("peer", words, channels)
    try:
        for this, stops in numbers(options):
            side.run(this)
            if stops:
                gc.collect()
                side.say("settled")
                if side.hears_the_last():
                    return
    except EOFError:
        pass  # the owner has ended and has reported why
    except Exception as error:
        words.send(f"in the peer: {told(error)}")


def run_owner(options: dict[str, Any]) -> None:
    """Run the owner, with its stops for samples."""
    break_reference(options["mutant"])
    context = mp.get_context(options["start_method"])
    mp.set_sharing_strategy(options["strategy"])
    words, others = multiprocessing.Pipe()
    channels = {
        (role, channel): make_channel(context, channel)
        for role in ROLES
        for channel in CHANNELS
    }
    peer = context.Process(target=run_peer, args=(others, channels, options))
    peer.start()
    others.close()
    side = Side("owner", words, channels)
    for this, stops in numbers(options):
        try:
            side.run(this)
            if stops:
                side.expect("settled")
                gc.collect()
        except Exception as error:
            where = f"in round {this.number} ({this.kind}, {this.order})"
            tell(failed=f"{where} {told(error)}")
            peer.kill()
            break
        if stops:
            tell(round=this.number, owner=os.getpid(), peer=peer.pid)
            said = answer_of_the_observer()
            side.say(said)
            if said == THE_LAST:
                break
    peer.join()


def answer_of_the_observer() -> str:
    """Wait for a line; return whether there is another round.

    At the end of the input the observer has gone, and nobody would end this process.
    """
    line = sys.stdin.readline()
    return (line.strip() or GO_ON) if line else THE_LAST


def told(error: Exception) -> str:
    """Return an error as text."""
    if isinstance(error, WrongValue):
        return str(error)
    return f"{type(error).__name__}: {error}"


def tell(**line: Any) -> None:
    """Write a line for the observer."""
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    run_owner(json.loads(sys.argv[1]))
