"""How a message itself holds the names in it while it is in flight.

The thread that pickles knows which way applies:

- One of our own channels is open, or one of our own processes is being started: the
  message gets one descriptor for all of its names when it is written. Its receiver
  holds the names itself before it closes that.
- A process of the standard library is being started: it inherits such a descriptor.
- Any other channel carries no descriptors, and nothing holds the name for the message:
  it can be received as long as some process holds the tensor.
"""

import functools
from collections.abc import Sequence
from multiprocessing.context import get_spawning_popen
from typing import Any

from . import transport
from .descriptors import OwnedDescriptor
from .names import program


def announce_name(name: str, owner: Any) -> Any:
    """Have what is being pickled hold a name; return what its handle says of that.

    `owner` keeps the name until the message is written. Clauses LIFE-2, LIFE-5.
    """
    outbox = transport.current_outbox()
    if outbox is not None:
        outbox.add_name(name, owner)
    elif get_spawning_popen() is not None:
        return transport.leave_to_others(program.in_flight([name]))
    return None


def discard(announcement: Any) -> None:
    """Close what holds the name of a handle: this process holds it itself by now."""
    if announcement is not None:
        transport.take_descriptor(announcement).close()


@functools.lru_cache(maxsize=1)
def last(name: str) -> OwnedDescriptor:
    """Return the descriptor of the last message with one name, or a new one.

    While this process holds the name, it does not matter how many copies of the
    descriptor are open. It is a single one, and goes with the next hold of any name
    that this process gives up: an interrupted finalizer may not have come so far.
    Clauses FS-3, RESHARE-7, THREAD-7.
    """
    owned = program.in_flight([name])
    owned.keep()
    return owned


def descriptor_of(names: Sequence[str]) -> OwnedDescriptor:
    """Return a descriptor that holds the names of a message in flight.

    Clauses FS-10, LIFE-2, LIFE-5, LIFE-13, LIFE-14. Raises `ResourceError`.
    """
    if len(names) > 1:
        return program.in_flight(names)
    known = last(*names)
    if known.is_usable():
        return known
    last.cache_clear()  # a fork has closed it here, or the program has
    return last(*names)
