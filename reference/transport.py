"""How descriptors leave and enter a process beside the bytes of a message.

A pickle is bytes, and a descriptor is not. There are three ways for it, and the thread
that pickles knows which one applies:

- One of our own channels is open: the descriptors go into the message's `Outbox` and
  travel with its bytes (SCM_RIGHTS), so the message survives its sender (clause
  LIFE-5).
- A process is being spawned: the descriptor is inherited.
- Any other channel of the standard library: its resource sharer hands out a duplicate
  when the receiver asks for it, which is slower and needs the sender alive.

The last two are `multiprocessing.reduction.DupFd`. On the way in an `Inbox` holds the
descriptors of the message that is being unpickled.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from multiprocessing import context, reduction, resource_sharer
from typing import Any

from .errors import HandleError

INHERITED_AT_MOST = 200  # the fork server accepts 256 with each request


class Outbox:
    """What a message carries beside its bytes, and how to take it back.

    `keep` holds what owns the descriptors until the message has been written.
    """

    def __init__(self) -> None:
        self.descriptors: list[int] = []
        self.keep: list[Any] = []
        self.undo: list[Callable[[], None]] = []

    def add(self, fd: int, owner: Any) -> int:
        """Enclose a descriptor and return its place in the message."""
        self.descriptors.append(fd)
        self.keep.append(owner)
        return len(self.descriptors) - 1

    def withdraw(self) -> None:
        """Undo what was announced for a message that is not sent. Clause GRAD-6."""
        for action in reversed(self.undo):
            action()
        self.clear()

    def clear(self) -> None:
        """Let go of everything: the message is on its way or withdrawn."""
        self.descriptors, self.keep, self.undo = [], [], []


class Inbox:
    """The descriptors of a message that is being unpickled; each is taken once."""

    def __init__(self, descriptors: list[int]):
        self.descriptors: list[int | None] = list(descriptors)

    def take(self, place: int) -> int:
        """The descriptor at `place`, now the caller's. Raises `HandleError`."""
        fd = None
        if isinstance(place, int) and 0 <= place < len(self.descriptors):
            fd, self.descriptors[place] = self.descriptors[place], None
        if fd is None:
            raise HandleError(
                f"The message has no descriptor in place {place}, which a handle in it "
                "names. Receive messages with the method that matches how they were "
                "sent, and each of them once."
            )
        return fd

    def close(self) -> None:
        """Close what was not taken, so that no message can leak descriptors."""
        for fd in self.descriptors:
            if fd is not None:
                os.close(fd)
        self.descriptors = []


class OwnedDescriptor:
    """A duplicate of a descriptor that is closed with this object."""

    def __init__(self, fd: int):
        self.fd = os.dup(fd)

    def __del__(self) -> None:
        try:  # noqa: SIM105  (at the end of the interpreter modules may be gone)
            os.close(self.fd)
        except AttributeError:
            pass


class _Current(threading.local):
    outbox: Outbox | None = None
    inbox: Inbox | None = None
    undo: list[Callable[[], None]] | None = None


_current = _Current()


@contextlib.contextmanager
def sending(outbox: Outbox) -> Iterator[None]:
    """Collect the descriptors of what this thread pickles in `outbox`."""
    before = _current.outbox, _current.undo
    _current.outbox, _current.undo = outbox, outbox.undo
    try:
        yield
    except BaseException:
        outbox.withdraw()
        raise
    finally:
        _current.outbox, _current.undo = before


@contextlib.contextmanager
def receiving(descriptors: list[int]) -> Iterator[None]:
    """Give this thread's unpickling the descriptors of its message."""
    before = _current.inbox
    _current.inbox = inbox = Inbox(descriptors)
    try:
        yield
    finally:
        _current.inbox = before
        inbox.close()


@contextlib.contextmanager
def spawning() -> Iterator[None]:
    """Take back what was announced to a child that then could not be started."""
    before, _current.undo = _current.undo, []
    try:
        yield
    except BaseException:
        for action in reversed(_current.undo):
            action()
        raise
    finally:
        _current.undo = before


def export_descriptor(fd: int, owner: Any = None) -> Any:
    """A ticket for `fd` that can be pickled now.

    `owner` keeps the descriptor open until the message is written; without an owner a
    duplicate is made for that time.
    """
    outbox = _current.outbox
    if outbox is not None and owner is None:
        owner = OwnedDescriptor(fd)
        return outbox.add(owner.fd, owner)
    if outbox is not None:
        return outbox.add(fd, owner)
    popen: Any = context.get_spawning_popen()  # `_fds`: what the child inherits
    if popen is not None and len(popen._fds) >= INHERITED_AT_MOST:
        return resource_sharer.DupFd(fd)
    return reduction.DupFd(fd)


def take_descriptor(ticket: Any) -> int:
    """The descriptor that a ticket stands for, from now on the caller's.

    Raises `HandleError` when it cannot be had, for instance since the sender, which has
    to hand it out on a channel that carries no descriptors, has gone.
    """
    if isinstance(ticket, int):
        inbox = _current.inbox
        return (inbox if inbox is not None else Inbox([])).take(ticket)
    try:
        fd: int = ticket.detach()
    except (OSError, EOFError) as error:
        raise HandleError(
            "The sender of this tensor no longer hands out its descriptor: it has "
            "ended or was killed. Use a channel of sharedtensor.multiprocessing, whose "
            "messages survive their sender, or keep the sender alive."
        ) from error
    return fd


def on_withdrawal(action: Callable[[], None]) -> None:
    """Register what takes back an announcement if this message is never sent."""
    if _current.undo is not None:
        _current.undo.append(action)
