"""Descriptors that are on their way out of this process, or into it.

They are closed with the object that owns them, so an exception that comes in between,
such as that of Ctrl-C, loses none (clause FAULT-2). What is on its way out is closed in
a forked child at once: what a process sends does not stay in its children.
"""

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat, starmap
from typing import Any


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


class OwnedDescriptor(ClosedAtLast):
    """A descriptor that is closed with this object, or in a forked child at once."""

    def __init__(self, fd: int = -1):
        self.fd = fd
        _owned.add(self)

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


class ReceivedDescriptors(ClosedAtLast, list[int | None]):
    """The descriptors of a message; those that nobody takes are closed with it.

    Who takes one leaves None in its place.
    """

    def take(self, place: int) -> int | None:
        """Return the descriptor in a place, now the caller's; None if it is taken."""
        fd, self[place] = self[place], None
        return fd

    def close(self) -> None:
        """Close what was not taken. Clauses FAULT-4, LIFE-19."""
        for place, fd in enumerate(self):
            self[place] = None
            if fd is not None:
                os.close(fd)


_owned: "weakref.WeakSet[OwnedDescriptor]" = weakref.WeakSet()


def _close_what_others_send() -> None:
    for owned in list(_owned):
        owned.close()


os.register_at_fork(after_in_child=_close_what_others_send)
