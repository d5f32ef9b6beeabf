"""An implementation in memory, on which random histories can be run.

It has processes, channels and segments, and shares as it has to; with a fault in it, a
history has to find it. Nothing runs beside the test, so each answer is there at once.
"""

from __future__ import annotations

from collections import deque
from itertools import count
from types import SimpleNamespace

from sharedtensor_conformance.adapter import PROFILES, Implementation
from sharedtensor_conformance.harness.case.outcomes import (
    DeadlineExceeded,
    RemoteError,
    RemoteRaised,
)
from sharedtensor_conformance.harness.remote.actor import Actor
from sharedtensor_conformance.harness.remote.calls import Remote
from sharedtensor_conformance.harness.remote.channels import Channel as ChannelClass

BOUNDS = {"queue_of_two": 2, "joinable_queue_of_three": 3}

IMPLEMENTATION = Implementation(
    name="in memory",
    operations="",
    claims=frozenset(PROFILES),
    strategies=("file_descriptor", "file_system"),
)


class Segment:
    """What tensors are windows on: numbers, and whether they are shared."""

    def __init__(self, numbers):
        self.numbers, self.named, self.is_shared = numbers, False, False


class Tensor(Remote):
    """A tensor in a process: places in a segment, and perhaps a grad."""

    keys = count()

    def __init__(self, actor, segment, places=None):
        super().__init__(actor, str(next(self.keys)))
        self.segment, self.own_grad = segment, None
        self.places = range(len(segment.numbers)) if places is None else places
        actor.tensors.append(self)

    def values(self):
        return [self.segment.numbers[place] for place in self.places]

    def write(self, index, value):
        self.segment.numbers[self.places[index]] = value

    def share(self):
        self.actor.move(self.segment)

    def clone(self):
        return Tensor(self.actor, Segment(self.values()))

    def view(self, layout):
        last = layout.offset + (layout.shape[0] - 1) * layout.strides[0]
        places = self.places[layout.offset : last + 1 : layout.strides[0]]
        return Tensor(self.actor, self.segment, places)

    def set_grad(self, grad):
        self.own_grad = grad

    def grad(self):
        if self.own_grad is not None and self.own_grad not in self.actor.tensors:
            self.actor.tensors.append(self.own_grad)
        return self.own_grad

    def drop(self):
        self.actor.tensors.remove(self)


class Part:
    """A tensor in a message. One that is in it twice, as a grad, is one part."""

    def __init__(self, tensor, message):
        message[id(tensor)] = self
        self.segment, self.places = tensor.segment, tensor.places
        self.grad = tensor.own_grad and part_of(tensor.own_grad, message)

    def arrived(self, actor, message):
        """Return the tensor that arrives in a process."""
        if id(self) not in message:
            made = message[id(self)] = Tensor(actor, self.segment, self.places)
            made.set_grad(self.grad and self.grad.arrived(actor, message))
        return message[id(self)]


def part_of(tensor, message):
    """Return the part of a message that a tensor is."""
    return message.get(id(tensor)) or Part(tensor, message)


class Padding(Remote):
    def __init__(self, actor, size):
        super().__init__(actor, "padding")
        self.size = size

    def drop(self):
        pass


class Pending:
    """Somebody who waits in a call: what it waits for is looked for when asked."""

    def __init__(self, look, otherwise=None):
        self.look, self.otherwise = look, otherwise
        self.found = None

    def is_waiting(self):
        return True

    def has_answered(self):
        if self.found is None:
            self.found = self.look()
        return self.found is not None

    def answer(self):
        if self.has_answered():
            return self.found[0]
        if self.otherwise is not None:
            return self.otherwise
        raise DeadlineExceeded("it waits for ever")


class Channel:
    def __init__(self, stage, kind):
        self.stage, self.kind = stage, kind
        self.messages, self.undone, self.joins = deque(), 0, []
        self.bound = BOUNDS.get(kind, 0)

    def put(self, actor, payload):
        if self.is_full():
            raise DeadlineExceeded("it waits for room")
        self.messages.append(self.stage.packed(actor, payload))
        self.undone += 1

    def is_full(self):
        return bool(self.bound) and len(self.messages) >= self.bound

    def take(self):
        return self.messages.popleft()

    def get(self, actor):
        if not self.messages:
            raise DeadlineExceeded("nothing comes")
        return self.stage.unpacked(actor, self.take())

    def get_within(self, actor, seconds):
        return [self.get(actor)] if self.messages else []

    def waiting(self, actor):
        return Pending(lambda: [self.get(actor)] if self.messages else None)

    def use(self, actor, method):
        if method is ChannelClass.task_done:
            self.undone -= 1
            if not self.undone:
                self.wake()

    def drop(self, actor):
        self.stage.channels.remove(self)

    def wake(self):
        for one in self.joins:
            one.found = [None]
        self.joins.clear()

    def using(self, actor, method):
        assert method is ChannelClass.join
        pending = Pending(lambda: [None] if not self.undone else None)
        self.joins.append(pending)
        pending.look = lambda: None
        return pending


class Process:
    """A process, which has everything that the suite asks an actor for."""

    def __init__(self, stage, name):
        self.stage, self.name = stage, name
        self.tensors, self.strategy = [], stage.configuration.strategy
        self.module = SimpleNamespace(set_sharing_strategy=self.set_strategy)
        self.targets = list
        stage.processes.append(self)

    def set_strategy(self, strategy):
        self.strategy = strategy

    def move(self, segment):
        if not segment.is_shared:
            segment.is_shared, segment.named = True, self.strategy == "file_system"

    def make(self, values):
        return Tensor(self, Segment(list(values)))

    def ensure_started(self):
        """Do nothing: it is in this process."""

    def put(self, payload, to, channel):
        is_list = isinstance(payload, list)
        tensors = payload if is_list else [payload]
        whole = {"number": 0, "tensors": tensors, "padding": None}
        route = self.stage.pairs.setdefault((self.name, to.name, channel), deque())
        route.append((self.stage.packed(self, whole), is_list))

    def get(self, sender, channel):
        message, is_list = self.stage.pairs[sender.name, self.name, channel].popleft()
        arrived = self.stage.unpacked(self, message)["tensors"]
        return arrived if is_list else arrived[0]

    def put_in_a_thread(self, payload, to, channel):
        self.put(payload, to, channel)

    def get_in_a_thread(self, sender, channel):
        return self.get(sender, channel)

    def drop_all(self):
        self.tensors.clear()

    def open_channel(self, kind):
        return self.stage.new_channel(kind)

    def start_peer(self, arguments, method):
        child = type(self)(self.stage, f"child-{len(self.stage.processes)}")
        child.arguments = [arguments[0], [self.give(t, child) for t in arguments[1]]]
        self.stage.began(self, child)
        return child

    def give(self, tensor, child):
        if self.stage.configuration.start_method != "fork":
            self.move(tensor.segment)
        if tensor.segment.is_shared:
            return Tensor(child, tensor.segment)
        return Tensor(child, Segment(tensor.values()))

    def run(self, function, *arguments):
        match function.__name__, arguments:
            case "make_padding", [size]:
                return Padding(self, size)
            case "is_padding", [padding, size]:
                return padding.size == size
            case "put_numbered_messages", [channel, first, number, size]:
                for one in range(first, first + number):
                    padding = Padding(self, size)
                    message = {"number": one, "tensors": [], "padding": padding}
                    channel.put(self, message)
                return None
            case "offer", [channel, payload]:
                if channel.is_full():
                    return False
                channel.put(self, payload)
                return True
            case "first_values", [tensor, count]:
                return tensor.values()[:count]
            case (("start_idle_thread" | "stop_idle_threads"), []):
                return None
        raise AssertionError(f"no model of {function.__name__}")

    def start(self, function, channel, seconds):
        assert function is Actor.get_within
        messages = channel.messages
        return Pending(lambda: [[channel.get(self)]] if messages else None, [])

    def run_to_end(self, function, how):
        self.stage.ended(self, abruptly=True)

    def leave(self):
        self.stage.ended(self)
        return 0

    def kill(self):
        self.stage.ended(self, abruptly=True)


class Stage:
    """All that there is: processes, channels, segments, and a ledger of them."""

    process, channel, implementation = Process, Channel, IMPLEMENTATION
    grace = 0.01

    def __init__(self, strategy, start_method):
        self.configuration = SimpleNamespace(
            strategy=strategy, start_method=start_method
        )
        self.timeouts = SimpleNamespace(answer=0.01)
        self.processes, self.channels, self.pairs = [], [], {}
        self.owner = self.process(self, "owner")
        self.ledger = SimpleNamespace(
            segments=self.segments,
            processes=lambda: {n: one.name for n, one in enumerate(self.processes)},
            left_behind=lambda: [*self.segments(), *self.processes],
        )

    def with_peers(self):
        """Return this stage, with the three processes of a case."""
        self.peer = self.process(self, "peer")
        self.bystander = self.process(self, "bystander")
        return self

    def new_channel(self, kind):
        self.channels.append(self.channel(self, kind))
        return self.channels[-1]

    def packed(self, actor, payload):
        """Return a message, whose segments are shared from now on."""
        sent = {}
        parts = [part_of(tensor, sent) for tensor in payload["tensors"]]
        for part in sent.values():
            actor.move(part.segment)
        size = payload["padding"].size if payload["padding"] else None
        return {"by": actor, "number": payload["number"], "in": parts, "size": size}

    def unpacked(self, actor, message):
        size, arrived = message["size"], {}
        return {
            "number": message["number"],
            "tensors": [part.arrived(actor, arrived) for part in message["in"]],
            "padding": None if size is None else Padding(actor, size),
        }

    def end_extra(self):
        assert self.processes == [self.owner]

    def began(self, parent, child):
        """A child was started."""

    def ended(self, process, abruptly=False):
        """A process has ended: with the last one all that was in flight goes."""
        self.processes.remove(process)
        process.tensors.clear()
        if not self.processes:
            for channel in self.channels:
                channel.messages.clear()

    def referred(self):
        held = {id(t.segment): t.segment for p in self.processes for t in p.tensors}
        for channel in self.channels:
            for message in channel.messages:
                held |= {id(part.segment): part.segment for part in message["in"]}
        return held.values()

    def segments(self):
        return [hex(id(one)) for one in self.referred() if one.named]

    def holdings(self, *actors):
        return [len(self.segments()), *(len(actor.tensors) for actor in actors)]

    def check_released(self, before, *actors):
        now = self.holdings(*actors)
        if any(held > was for held, was in zip(now, before, strict=True)):
            raise AssertionError(f"{before} became {now}")


def raised(what):
    """Return an exception as an implementation raises it in a process."""
    return RemoteRaised(RemoteError("owner", "OSError", [], what, ""), "operate")
