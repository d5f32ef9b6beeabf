"""Descriptors that are on their way out of this process, or into it.

Each belongs to an object from the very call of C that opens it, receives it, or passes
it on: an exception of a signal handler, such as that of Ctrl-C, can arise wherever such
a call comes back, and not within it. They are closed with their owner, so none is lost
(clause FAULT-2), and in a forked child at once: what a process sends or receives does
not stay in its children. What the kernel hands to another thread just when this one
forks is in no object yet: a child keeps it until its end.
"""

import errno
import os
import socket
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat, starmap
from typing import Any, TypeVar

from .errors import pass_on

Result = TypeVar("Result")
RIGHTS = int(socket.SOL_SOCKET), int(socket.SCM_RIGHTS)
AFTER_STREAMS = 3  # descriptors 0, 1 and 2 are a program's standard streams
IN_FLIGHT_TIMEOUT = 1.0  # seconds for others to receive some of what is in flight
PAUSE = 0.001


class ClosedAtLast:
    """What is closed with its last reference."""

    __slots__ = ()

    def close(self) -> None:
        """Close what is open; once."""
        raise NotImplementedError

    def __del__(self) -> None:
        try:  # noqa: SIM105  (at the end of the interpreter modules may be gone)
            self.close()
        except (AttributeError, TypeError):
            pass


class ClosedInChildren(ClosedAtLast):
    """What is closed in a forked child at once, too. `_note` has to know of it."""

    __slots__ = ("__weakref__",)


class OwnedDescriptor(ClosedInChildren):
    """A descriptor; -1 if it is closed, or another's."""

    __slots__ = ("fd",)

    def __init__(self, fd: int = -1):
        self.fd = fd
        _note(_reference(self, _forget))

    @classmethod
    def opened_by(cls, call: Callable[..., int], *arguments: Any) -> "OwnedDescriptor":
        """Return the owner of the descriptor that a function of C returns.

        It owns the descriptor before an exception of a signal handler can arise.
        """
        owned = cls()
        open_as(owned, "fd", call, *arguments)
        return owned

    @classmethod
    def pair_opened_by(
        cls, call: Callable[..., tuple[int, int]], *arguments: Any
    ) -> tuple["OwnedDescriptor", "OwnedDescriptor"]:
        """Return the owners of the two descriptors that a function of C returns."""
        first, second = owners = cls(), cls()
        _give(owners, "fd", chain.from_iterable(starmap(call, (arguments,))))
        return first, second

    def close(self) -> None:
        """Close it, once."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def open_as(
    owner: object, attribute: str, call: Callable[..., int], *arguments: Any
) -> int:
    """Return the descriptor that a function of C returns, an attribute of its owner.

    It is that before an exception of a signal handler can arise.
    """
    any(map(setattr, (owner,), (attribute,), starmap(call, (arguments,))))
    opened: int = getattr(owner, attribute)
    return opened


def _give(owners: Sequence[object], attribute: str, opened: Iterable[int]) -> None:
    """Give descriptors to owners by one call of C, in which no signal handler runs.

    `opened` opens them when it is iterated over, and has no step in Python either.
    """
    deque(map(setattr, owners, repeat(attribute), opened), maxlen=0)


class OwnedSockets(ClosedInChildren):
    """Sockets. `opened` makes them when it is iterated over, without a step in Python.

    They are those of C: the class of the module `socket` has such steps.
    """

    __slots__ = ("sockets",)

    def __init__(self, opened: Iterable[socket.SocketType]):
        self.sockets: list[socket.SocketType] = []
        _note(_reference(self, _forget))
        self.sockets.extend(opened)

    def close(self) -> None:
        """Close those that are open."""
        for each in self.sockets:
            each.close()


class ReceivedDescriptors(ClosedInChildren):
    """The descriptors of a message; those that nobody takes are closed with it.

    Who takes one leaves None in its place. `places` has them once `receive` returns;
    before that those of a packet that has come are in `_packets` alone.
    """

    __slots__ = ("_packets", "places")

    def __init__(self) -> None:
        self.places: list[int | None] = []
        self._packets: list[Any] = []
        _note(_reference(self, _forget))

    def receive(
        self, taken: list[Any], call: Callable[..., Any], *arguments: Any
    ) -> tuple[bytes, int]:
        """Add the descriptors of a packet; return its bytes and its flags.

        Args:
            taken: an empty list; what has come is in it from the call of C on.
            call: the method `recvmsg` of a socket.
            arguments: what it is given.
        """
        self._packets = taken
        taken.extend(starmap(call, (arguments,)))
        data, ancillary, flags, _ = taken[0]
        if ancillary:
            self._sort_in()
        return data, flags

    def _sort_in(self) -> None:
        """Put what has come in its places."""
        places = [*self.places]
        for _, ancillary, _, _ in self._packets:
            for level, kind, content in ancillary:
                if (level, kind) == RIGHTS:
                    places.extend(memoryview(content).cast("i"))
        self.places, self._packets = places, []  # no handler runs between the two

    def take(self, place: int) -> OwnedDescriptor | None:
        """Return the owner of the descriptor in a place; None if it is taken."""
        fd = self.places[place]
        if fd is None:
            return None
        owned = OwnedDescriptor()
        owned.fd, self.places[place] = fd, None
        return owned

    def drop(self, place: int) -> None:
        """Close the descriptor in a place; those behind it are one place before."""
        fd = self.places[place]
        del self.places[place]
        if fd is not None:
            os.close(fd)

    def close(self) -> None:
        """Close what was not taken. Clauses FAULT-4, LIFE-19."""
        if self._packets:
            self._sort_in()
        for place, fd in enumerate(self.places):
            self.places[place] = None
            if fd is not None:
                os.close(fd)


def send_in_time(send: Callable[[], Result], timeout: float) -> Result:
    """Return what `send` returns, which puts descriptors in flight.

    All programs of a user together may have as many in flight as one process may have
    open (unix(7)), so a refusal may pass. Raises the `OSError` of `send`: that of such
    a refusal when it has lasted for `timeout` seconds.
    """
    until = 0.0
    while True:
        try:
            return send()
        except OSError as error:
            pass_on(error)
            if error.errno != errno.ETOOMANYREFS:
                raise
            until = until or time.monotonic() + timeout
            if time.monotonic() >= until:
                raise
        time.sleep(PAUSE)


class Reserve:
    """Descriptors that are open to be closed where others are needed and short.

    So a message that was accepted can be written though no descriptor can be opened.
    Messages that wait have it in common, and it goes with the last of them.
    """

    COUNT = 4  # for a pipe, or a pair of sockets, and a file

    __slots__ = ("__weakref__", "spare")

    def __init__(self) -> None:
        self.spare: list[OwnedDescriptor] = []

    def fill(self) -> None:
        """Open what is missing: a forked child has none. Raises `OSError`."""
        self.spare = [owned for owned in self.spare if owned.fd >= 0]
        while len(self.spare) < self.COUNT:
            null = os.devnull, os.O_RDONLY | os.O_CLOEXEC
            self.spare.append(OwnedDescriptor.opened_by(os.open, *null))

    def spend(self) -> bool:
        """Close the descriptors; return whether there were any."""
        spare, self.spare = self.spare, []
        for owned in spare:
            owned.close()
        return bool(spare)


_reserves: "weakref.WeakSet[Reserve]" = weakref.WeakSet()  # one at most


def hold_reserve() -> Reserve:
    """Return the reserve of this process, which is there as long as somebody holds it.

    Raises `OSError`.
    """
    held = next(iter(_reserves), None) or Reserve()
    held.fill()
    _reserves.add(held)
    return held


def by_reserve(call: Callable[..., Result], *arguments: Any) -> Result:
    """Return what a function returns that opens descriptors, if need be by the reserve.

    Raises the `OSError` of the function.
    """
    try:
        return call(*arguments)
    except OSError as error:
        pass_on(error)
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        if not any([held.spend() for held in list(_reserves)]):
            raise
    return call(*arguments)


# A `WeakSet` would do, and takes half a microsecond for each message.
_open: "set[weakref.ref[ClosedInChildren]]" = set()
_note, _forget, _reference = _open.add, _open.discard, weakref.ref


def _close_what_others_pass_on() -> None:
    for reference in list(_open):
        each = reference()
        if each is not None:
            each.close()


os.register_at_fork(after_in_child=_close_what_others_pass_on)
