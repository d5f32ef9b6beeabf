"""The channels that actors send on, made by the implementation's own contexts.

`PairChannels` are all channels between two actors. A `Channel` does not belong to a
pair: all processes that get it as an argument share it.
"""

from __future__ import annotations

import copy
import queue
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from sharedtensor_conformance.harness.kernel.process_tree import wait_until

Arguments = dict[str, Any] | Sequence[Any]
"""Arguments of a call: a dictionary if they are passed by name, else a sequence."""


def _call(function: Callable[..., Any], how: Arguments, *before: Any) -> Any:
    """Call a function with `how` after the arguments `before`."""
    if isinstance(how, dict):
        return function(*before, **how)
    return function(*before, *how)


class Channel:
    """A channel that does not belong to a pair of actors; processes get it as argument.

    Its name is the same in all processes that have it.
    """

    MAKERS: ClassVar = {
        "queue": "Queue",
        "simple_queue": "SimpleQueue",
        "joinable_queue": "JoinableQueue",
    }
    BOUNDED: ClassVar = {
        "queue_of_one": ("Queue", 1),
        "queue_of_two": ("Queue", 2),
        "queue_of_many": ("Queue", 1000),
        "joinable_queue_of_three": ("JoinableQueue", 3),
    }

    def __init__(self, name: str, context: Any, kind: str) -> None:
        self.name = name
        self.manager: Any = None
        if kind == "pipe":
            self.reader, self.writer = context.Pipe(duplex=False)
        elif kind == "duplex_pipe":
            self.reader, self.writer = context.Pipe()
        elif kind == "proxy":
            self.manager = context.Manager()
            self.reader = self.writer = self.manager.Queue()
        elif kind in self.BOUNDED:
            maker, bound = self.BOUNDED[kind]
            self.reader = self.writer = getattr(context, maker)(bound)
        else:
            self.reader = self.writer = getattr(context, self.MAKERS[kind])()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"manager": None}  # it belongs to who made it

    def put(self, message: object) -> None:
        """Put a message."""
        put = getattr(self.writer, "put", None) or self.writer.send
        put(message)

    def get(self) -> Any:
        """Return the next message."""
        get = getattr(self.reader, "get", None) or self.reader.recv
        return get()

    def offer(self, message: object, how: Arguments = ()) -> bool:
        """Put a message on a queue if it has room; return whether it had.

        `how` has the arguments with which `put` does not wait for ever; it is empty for
        `put_nowait`.
        """
        try:
            if how:
                _call(self.writer.put, how, message)
            else:
                self.writer.put_nowait(message)
        except queue.Full:
            return False
        return True

    def get_within(self, seconds: float) -> list[Any]:
        """Return a list with the next message, or an empty list after the time."""
        if hasattr(self.reader, "poll"):
            return [self.reader.recv()] if self.reader.poll(seconds) else []
        if not hasattr(self.reader, "get_nowait"):  # a simple queue, which cannot wait
            wait_until(lambda: not self.reader.empty(), seconds)
            return [] if self.reader.empty() else [self.reader.get()]
        try:
            return [self.reader.get(timeout=seconds)]
        except queue.Empty:
            return []

    def has_message(self) -> bool:
        """Return whether a message, or a part of one, can be received."""
        poll = getattr(self.reader, "poll", None)
        return bool(poll(0)) if poll else not self.reader.empty()

    def close_writer(self) -> None:
        """Close this process's writing end of a pipe."""
        self.writer.close()

    def close_reader(self) -> None:
        """Close this process's reading end of a pipe."""
        self.reader.close()

    def flush(self) -> None:
        """Close a queue, and wait until all its messages are written."""
        self.close()
        if hasattr(self.writer, "join_thread"):  # else `put` has written it
            self.writer.join_thread()

    def cancel_join_thread(self) -> None:
        """Permit this process to end before its messages are written."""
        self.writer.cancel_join_thread()

    def put_bytes(self, text: str) -> None:
        """Send a text on a pipe as bare bytes."""
        self.writer.send_bytes(text.encode())

    def get_bytes(self) -> str:
        """Receive bare bytes from a pipe, as a text."""
        received: bytes = self.reader.recv_bytes()
        return received.decode()

    def try_get(self, how: Arguments) -> list[Any]:
        """Return a list with the next message of a queue, empty if the queue is empty.

        `how` has the arguments with which `get` does not wait; empty for `get_nowait`.
        """
        try:
            return [_call(self.reader.get, how) if how else self.reader.get_nowait()]
        except queue.Empty:
            return []

    def seconds_until_empty(self, how: Arguments) -> float | None:
        """Return how long `get` took to report an empty queue; None if it did not."""
        began = time.monotonic()
        try:
            _call(self.reader.get, how)
        except queue.Empty:
            return time.monotonic() - began
        return None

    def seconds_until_full(self, how: Arguments) -> float | None:
        """Return how long `put` took to report a full queue; None if it did not."""
        began = time.monotonic()
        has_had_room = self.offer(None, how)
        return None if has_had_room else time.monotonic() - began

    def size(self) -> int:
        """Return the size that a queue reports."""
        return int(self.reader.qsize())

    def task_done(self) -> None:
        """Call ``task_done()``."""
        self.reader.task_done()

    def join(self) -> None:
        """Call ``join()``, which waits until all tasks are done."""
        self.writer.join()

    def close(self) -> None:
        """Close all ends of the channel in this process."""
        if self.manager is not None:
            self.manager.shutdown()
            return
        for end in {id(end): end for end in (self.reader, self.writer)}.values():
            if hasattr(end, "close"):
                end.close()


class PairChannels:
    """All channels between the actors `one` and `other`, in both directions.

    It is made in the owner, and the peers get it as a process argument, as
    `multiprocessing` requires.
    """

    def __init__(
        self, context: Any, one: str, other: str, kinds: tuple[str, ...]
    ) -> None:
        self._channels: dict[tuple[str, str], Channel] = {}
        for sender in (one, other):
            for kind in kinds:
                if kind != "pipe":
                    self._channels[sender, kind] = Channel("", context, kind)
        if "pipe" in kinds:
            there = Channel("", context, "duplex_pipe")
            back = copy.copy(there)
            back.reader, back.writer = there.writer, there.reader
            self._channels |= {(one, "pipe"): there, (other, "pipe"): back}

    def of(self, sender: str, kind: str) -> Channel:
        """Return the channel of this kind on which `sender` sends."""
        return self._channels[sender, kind]

    def close_other_ends(self, name: str) -> None:
        """Close the end of the pipe that belongs to the other actor."""
        if pipe := self._channels.get((name, "pipe")):
            pipe.close_reader()

    def close(self) -> None:
        """Close all ends of the channels in this process."""
        for channel in self._channels.values():
            channel.close()
