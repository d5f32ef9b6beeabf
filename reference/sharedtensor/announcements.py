"""How the manager learns which messages carry a name, and when they are gone.

A name can be pickled, and yet the manager must know of a message that carries it: the
name has to outlive its sender while the message is in flight. There are two ways, and
the thread that pickles knows which one applies:

- One of our own channels is open, or one of our own processes is being started: one
  descriptor in the message stands for all of its names with one manager. They are in
  flight as long as a copy of it is open anywhere, and so the receiver can hold them by
  it; else it is closed with the inbox, or by the kernel.
- Any other channel carries no descriptors: the manager counts the message until its
  receiver says that it has it.
"""

from typing import Any, Protocol

from . import transport
from .descriptors import OwnedDescriptor
from .errors import ResourceError, pass_on
from .manager import client as manager


class Announcement(Protocol):
    """What a handle says of how its message was announced.

    Where a descriptor in the message stands for the name, that is a number, the place
    of the descriptor.
    """

    def received(self, name: str, address: str) -> None:
        """Let the manager know that the message has arrived, and its name is held."""

    def discarded(self, name: str, address: str) -> None:
        """Let the manager know that the message arrived where the name was held."""


class Counted:
    """The manager counts the message. Clauses CHAN-10, LIFE-2."""

    def received(self, name: str, address: str) -> None:
        """Acknowledge the message."""
        manager.acknowledge_counted(name, address=address)

    def discarded(self, name: str, address: str) -> None:
        """Withdraw the message."""
        manager.withdraw_counted(name, address=address)

    def __reduce__(self) -> str:
        return "COUNTED"


COUNTED = Counted()


def announce_name(name: str, address: str, owner: Any) -> Announcement | int:
    """Announce that what is being pickled carries a name; return how.

    A message of ours is announced later, when all its names are known: see
    `descriptor_of`. `owner` keeps the name until then. Clauses LIFE-2, LIFE-5.
    """
    outbox = transport.current_outbox()
    if outbox is not None:
        return outbox.add_name(name, address, owner)
    manager.announce_counted(name, address=address)
    return COUNTED


def take_over(name: str, address: str, announcement: Announcement | int) -> None:
    """Hold a name that a message has brought, and count the message as received.

    In this order: see `sharedtensor.manager`. The descriptor that stands for the name
    will do to hold it for a while. Whoever calls this gives the name up, whatever this
    raises. Clauses FS-2, FS-8, LIFE-2, LIFE-13.
    """
    if isinstance(announcement, int):
        inbox = transport.current_inbox()
        if inbox.carries_others(announcement, name):
            manager.register(name, address=address)
            manager.register_held(address)
        elif (carrier := inbox.carrier(announcement)) is not None:
            manager.hold(name, address, carrier)
        else:
            manager.register(name, address=address)
        return
    manager.register(name, address=address)
    announcement.received(name, address)


def discard(name: str, address: str, announcement: Announcement | int) -> None:
    """Let a message go that has brought a name which this process holds already.

    What stands for the name in it is closed with it, so no other name can be held by
    it. Clauses FS-2, RESHARE-7.
    """
    if not isinstance(announcement, int):
        announcement.discarded(name, address)
    elif transport.current_inbox().carries_others(announcement, name):
        manager.register_held(address)


class LastAnnouncement:
    """The descriptor of the last message with one name, to stand for the next one too.

    Whoever sends one tensor over and over tells the manager once. While this process
    holds the name, it does not matter how many copies of the descriptor are open; with
    the last hold this one goes. It is a single one, whatever is shared. Clauses FS-3,
    RESHARE-7.
    """

    def __init__(self) -> None:
        # One attribute: another thread may keep another one between two steps of this.
        self._last: tuple[str, OwnedDescriptor] | None = None

    def find(self, name: str) -> OwnedDescriptor | None:
        """Return the descriptor that stands for a name, if there is one.

        In a forked child there is none: the parent's has been closed.
        """
        found = self._last
        if found is None or found[0] != name or found[1].fd < 0:
            return None
        return found[1]

    def keep(self, name: str, owned: OwnedDescriptor) -> None:
        """Keep the descriptor in the place of the one before."""
        self._last = name, owned

    def discard(self, name: str) -> None:
        """Let go of the descriptor of a name that this process gives up.

        Where another thread keeps one at this moment, it is told to the manager again.
        """
        found = self._last
        if found is not None and found[0] == name:
            self._last = None


last = LastAnnouncement()


def register_new(name: str, address: str) -> None:
    """Tell the manager of a name that is about to be made, and perhaps sent at once.

    Where it is shared by a message of ours, one call says that and that the message
    carries it. Where no descriptor can be sent now, it is announced when the message
    is written. Clauses FAIL-1, FS-2, LIFE-2, MGR-2.
    """
    if transport.current_outbox() is not None:
        try:
            last.keep(name, manager.register_announced(name, address=address))
        except ResourceError as error:
            pass_on(error)
        else:
            return
    manager.register(name, address=address)


def descriptor_of(names: list[str], address: str) -> OwnedDescriptor:
    """Return a descriptor that keeps names in flight as long as a copy of it is open.

    The kernel closes the copies of those who are killed, and of messages that nobody
    can receive any more. Clauses FS-10, LIFE-2, LIFE-5, LIFE-13, LIFE-14.
    """
    alone = names[0] if len(names) == 1 else ""
    if alone and (known := last.find(alone)) is not None:
        return known
    owned = manager.announce(names, address=address)
    if alone:
        last.keep(alone, owned)
    return owned
