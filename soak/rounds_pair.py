"""The owner and the peer of `rounds.py`: they share, send, receive and drop, in rounds.

Both work from one plan: what happens in a round is decided by the seed and the number
of the round alone. The pipe on which they tell each other how far they are is the
standard library's and carries words; tensors go through the channels under test. So at
the end of a round both hold nothing, and there the owner stops now and then to be
looked at: it writes a line and waits for one.

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
from sharedtensor.manager import client
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
"""What a message is, and how often: a round in some 300 sends 300 tensors at once."""

SEVERAL, MANY = 5, 300
LONGEST = 40_000  # elements of 8 bytes
BESIDE = 100_000  # bytes that do not fit into a packet
WRITTEN = -1.0

Payload = dict[str, Any]


@dataclass(frozen=True)
class Round:
    """What happens in one round."""

    number: int
    channel: str
    sender: str
    order: str
    kind: str
    lengths: tuple[int, ...]

    @classmethod
    def planned(cls, seed: int, number: int) -> Round:
        """Return the round of that number: its channel and direction take turns."""
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
    """Return a length: nothing now and then, else small ones as often as large ones."""
    if choose.random() < 0.05:
        return 0
    return max(HEADER + 2, int(longest ** choose.random()))


# Messages


def message_of(this: Round) -> Payload:
    """Return what is sent in a round, not shared yet."""
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
    """Raise `WrongValue` unless the message is what the plan says it is."""
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
    """Write the last element of the first tensor, as far as it has elements."""
    payload["tensors"][0].detach()[-1:] = WRITTEN


def verify_written(payload: Payload) -> None:
    """Raise `WrongValue` unless what the other process has written is seen here."""
    if (payload["tensors"][0].numpy()[-1:] != WRITTEN).any():
        raise WrongValue("A write by the receiver is not seen by the sender.")


# The two sides of a round


class Side:
    """One process: its ends of all channels, and its pipe to the other one."""

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
        """Tell the other side how far this one is."""
        self.words.send(word)

    def expect(self, word: str) -> None:
        """Wait until the other side is so far."""
        heard = self.words.recv()
        if heard != word:
            raise WrongValue(heard)

    def hears_the_last(self) -> bool:
        """Wait until the other side says whether there is another round."""
        heard = self.words.recv()
        if heard not in (GO_ON, THE_LAST):
            raise WrongValue(heard)
        return bool(heard == THE_LAST)

    def run(self, this: Round) -> None:
        """Do this side's part in a round; afterwards it holds nothing."""
        if this.kind == "refused":
            self.be_refused(this)
        elif this.sender == self.role:
            self.run_sender(this)
        else:
            self.run_receiver(this)

    def be_refused(self, this: Round) -> None:
        """Send what cannot be sent; whatever was made for it has to go again."""
        if this.sender != self.role:
            return
        try:
            self.put(this, message_of(this))
        except NonLeafError:
            return
        raise WrongValue("A computed tensor that requires grad was sent.")

    def run_sender(self, this: Round) -> None:
        """Make, send, and drop when the plan says so."""
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
        """Receive one's own tensor, which has to be over one's own storage."""
        self.expect("returned")
        back = self.get(this)
        if back["tensors"][0].storage is not payload["tensors"][0].storage:
            raise WrongValue("A tensor came back over other memory than its own.")

    def run_receiver(self, this: Round) -> None:
        """Receive, verify, verify again when the sender has dropped, drop."""
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

    def settle(self) -> None:
        """Have everything that was dropped be gone when this returns."""
        gc.collect()
        client.sync()


def numbers(options: dict[str, Any]) -> Iterator[tuple[Round, bool]]:
    """Yield the rounds, and after which of them is a stop."""
    for number in range(1, options["rounds"] + 1):
        stops = number % options["every"] == 0 or number == options["rounds"]
        yield Round.planned(options["seed"], number), stops


def run_peer(words: Any, channels: dict[Any, Any], options: dict[str, Any]) -> None:
    """Run the peer; a fault is told to the owner, who is about to hear a word."""
    break_reference(options["mutant"])
    side = Side("peer", words, channels)
    try:
        for this, stops in numbers(options):
            side.run(this)
            if stops:
                side.settle()
                side.say("settled")
                if side.hears_the_last():
                    return
    except EOFError:
        pass  # the owner has ended, and has said why
    except Exception as error:
        words.send(f"in the peer: {told(error)}")


def run_owner(options: dict[str, Any]) -> None:
    """Run the owner, and stop to be looked at."""
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
                side.settle()
        except Exception as error:
            where = f"in round {this.number} ({this.kind}, {this.order})"
            tell(failed=f"{where} {told(error)}")
            peer.kill()
            break
        if stops:
            tell(round=this.number, owner=os.getpid(), peer=peer.pid)
            said = sys.stdin.readline().strip() or GO_ON
            side.say(said)
            if said == THE_LAST:
                break
    peer.join()


def told(error: Exception) -> str:
    """Return an error in words."""
    if isinstance(error, WrongValue):
        return str(error)
    return f"{type(error).__name__}: {error}"


def tell(**line: Any) -> None:
    """Write a line for the observer."""
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    run_owner(json.loads(sys.argv[1]))
