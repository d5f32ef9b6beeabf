"""An implementation in memory, on which random histories with deaths can be run.

It has processes, channels and segments, and shares as it has to; with a fault in it, a
history has to find it. Nothing runs beside the test, so each answer is there at once.
"""

from __future__ import annotations

from collections import deque
from itertools import count
from types import SimpleNamespace

from sharedtensor_conformance.harness.actor import Actor
from sharedtensor_conformance.harness.channels import Channel as ChannelClass
from sharedtensor_conformance.harness.outcomes import (
    DeadlineExceeded,
    RemoteError,
    RemoteRaised,
)
from sharedtensor_conformance.harness.proxies import Remote

BOUNDS = {"queue_of_two": 2, "joinable_queue_of_three": 3}


class Segment:
    """What tensors are windows on: numbers, and whether they are shared."""

    def __init__(self, numbers):
        self.numbers, self.named, self.is_shared = numbers, False, False


class Tensor(Remote):
    """A tensor in a process."""

    keys = count()

    def __init__(self, actor, segment):
        super().__init__(actor, str(next(self.keys)))
        self.segment = segment
        actor.tensors.append(self)

    def values(self):
        return list(self.segment.numbers)

    def write(self, index, value):
        self.segment.numbers[index] = value

    def share(self):
        self.actor.move(self.segment)

    def drop(self):
        self.actor.tensors.remove(self)


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
        self.system = SimpleNamespace(targets=list)
        stage.processes.append(self)

    def set_strategy(self, strategy):
        self.strategy = strategy

    def move(self, segment):
        if not segment.is_shared:
            segment.is_shared, segment.named = True, self.strategy == "file_system"

    def make(self, values):
        return Tensor(self, Segment(list(values)))

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

    process, channel = Process, Channel
    grace = 0.01

    def __init__(self, strategy, start_method):
        self.configuration = SimpleNamespace(
            strategy=strategy, start_method=start_method
        )
        self.timeouts = SimpleNamespace(answer=0.01)
        self.implementation = SimpleNamespace(claims={"manager"})
        self.processes, self.channels = [], []
        self.owner = self.process(self, "owner")
        self.ledger = SimpleNamespace(
            segments=self.segments,
            processes=lambda: {n: one.name for n, one in enumerate(self.processes)},
            left_behind=lambda: [*self.segments(), *self.processes],
        )

    def new_channel(self, kind):
        self.channels.append(self.channel(self, kind))
        return self.channels[-1]

    def packed(self, actor, payload):
        """Return a message: its tensors are named by their segments."""
        segments = [tensor.segment for tensor in payload["tensors"]]
        for segment in segments:
            actor.move(segment)
        size = payload["padding"].size if payload["padding"] else None
        return {"by": actor, "number": payload["number"], "in": segments, "size": size}

    def unpacked(self, actor, message):
        size = message["size"]
        return {
            "number": message["number"],
            "tensors": [Tensor(actor, segment) for segment in message["in"]],
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
                held |= {id(segment): segment for segment in message["in"]}
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
