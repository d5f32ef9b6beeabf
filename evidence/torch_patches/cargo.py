"""The resources of a message, and which process has to release them.

A message has descriptors, and names of segments in which its sender counted the
message. Until the message is sent, they belong to the sender. When a receiver has
rebuilt the message, or has failed to, it releases those that it did not take.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.reduction import ForkingPickler
from typing import Any

TAKEN = -1
"""Stands in the place of a descriptor that was taken."""


class Cargo:
    """The descriptors of a message, and the names in which it is counted.

    `extra` are descriptors that only the packet needs.
    """

    give_back: Any = staticmethod(lambda manager, name: None)
    """Counts a message down in a segment; set by the fix that counts."""

    def __init__(
        self, descriptors: Iterable[int] = (), names: Iterable[Any] = ()
    ) -> None:
        self.descriptors = list(descriptors)
        self.names = list(names)
        self.extra: list[int] = []
        self.process = os.getpid()

    def add(self, descriptor: int) -> int:
        """Duplicate a descriptor into the message; return its place there."""
        # By one call of C, so that no exception of a signal handler finds it lost.
        self.descriptors.extend(map(os.dup, (descriptor,)))
        return len(self.descriptors) - 1

    def take(self, place: int) -> int:
        """Return a descriptor, which is the caller's from now on."""
        descriptor, self.descriptors[place] = self.descriptors[place], TAKEN
        if descriptor == TAKEN:
            raise RuntimeError(f"descriptor {place} of the message was taken already")
        return descriptor

    def has_left(self) -> None:
        """Close the duplicates; the counts are now those of the receiver."""
        self.names.clear()
        self.release()

    def release(self) -> None:
        """Give back everything that nobody has taken."""
        there = [one for one in (*self.descriptors, *self.extra) if one != TAKEN]
        # No signal handler runs before the call of C, nor between its closes.
        self.descriptors, self.extra = [], []
        deque(map(os.close, there), maxlen=0)
        names, self.names = self.names, []
        if self.process == os.getpid():  # a forked child has the same message
            for manager, name in names:
                self.give_back(manager, name)

    def __del__(self) -> None:
        """Give back what a message has that was dropped."""
        with suppress(Exception):
            self.release()


class Detached:
    """A descriptor that is there, in the place of the promise of one."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def detach(self) -> int:
        """Return it."""
        return self.descriptor


class Message:
    """The bytes of an object, what travels with them, and the packet once made."""

    __slots__ = ("body", "cargo", "packet")

    def __init__(self, body: Any, cargo: Cargo | None = None) -> None:
        self.body = body
        self.cargo = cargo or Cargo()
        self.packet: tuple[Any, Any] | None = None


class Current(threading.local):
    """The message that this thread is packing, and the one that it is rebuilding."""

    packed: Cargo | None = None
    rebuilt: Cargo | None = None


current = Current()


@contextmanager
def _as_current(role: str, cargo: Cargo) -> Iterator[None]:
    before = getattr(current, role)
    setattr(current, role, cargo)
    try:
        yield
    finally:
        setattr(current, role, before)


def pack(value: object) -> Message:
    """Pickle an object; an exception leaves nothing of it."""
    cargo = Cargo()
    with _as_current("packed", cargo):
        try:
            return Message(ForkingPickler.dumps(value), cargo)
        except BaseException:
            cargo.release()
            raise


def unpack(message: Message) -> Any:
    """Rebuild an object, and give back what it did not take."""
    with _as_current("rebuilt", message.cargo):
        try:
            return pickle.loads(message.body)
        finally:
            message.cargo.release()
