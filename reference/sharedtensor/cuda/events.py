"""Events that programs hold: an order between processes beyond that of a send.

A send orders what was written before it. Where a tensor is shared already, a later
write needs an event: its writer records one and sends it, and the reader lets its work
come after it. Nobody's host waits.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from multiprocessing.reduction import ForkingPickler
from typing import Any

from .devices import device_state, local_name
from .driver import Driver
from .liveness import Identity, own_identity
from .state import DeviceState

# Who made an event, and which of its events it is: a handle may be given out again.
Key = tuple[Identity, int]
_serials = itertools.count(1)


class Event:
    """A point in the work of a process. Clause CUDA-29.

    The process that made it keeps it until all that it was sent to have received it,
    and until those that wait for it have synchronised.

    Raises DeviceUnavailableError; ForkError.
    """

    def __init__(self, device: str | None = None) -> None:
        state = device_state(device)
        number, handle = state.use(_create, state.driver)
        self._hold(state, number, handle, (own_identity(), next(_serials)))

    def _hold(self, state: DeviceState, number: int, handle: bytes, key: Key) -> None:
        self._state, self._number, self._handle = state, number, handle
        self._key = key
        _known[key] = self
        destroy = functools.partial(_destroy, state, number)
        finalizer = weakref.finalize(self, state.lock.run_soon, destroy)
        finalizer.atexit = False  # `shut_down` sees to the end of the process

    @property
    def device(self) -> str:
        """The device on which it is."""
        return self._state.driver.name

    def record(self) -> None:
        """Let the event stand for all work that this process has queued so far."""
        self._state.use(self._state.driver.event_record, self._number)

    def wait(self) -> None:
        """Let the later work of this process come after the event. Clause CUDA-29."""
        self._state.use(self._state.driver.event_wait, self._number)

    def synchronize(self) -> None:
        """Wait until the work that the event stands for is done."""
        self._state.use(self._state.driver.event_synchronize, self._number)


_known: weakref.WeakValueDictionary[Key, Event] = weakref.WeakValueDictionary()


def _create(driver: Driver) -> tuple[int, bytes]:
    number = driver.event_create()
    return number, driver.event_handle(number)


def _destroy(state: DeviceState, number: int) -> None:
    if not state.ended and not state.driver.forked():
        state.driver.event_destroy(number)


def reduce_event(event: Event) -> tuple[Any, ...]:
    """Send an event, own or received: its handle travels. Clause CUDA-29."""
    event._state.driver.refuse_fork()
    return rebuild_event, (event._state.driver.identity, event._handle, event._key)


def rebuild_event(identity: str, handle: bytes, key: Key) -> Event:
    """Receive an event; where it is known already it is the same object.

    Raises ForkError; DeviceUnavailableError if this process does not see its device;
    DeviceHandleError if its maker has given it up.
    """
    state = device_state(local_name(identity), handle=handle)
    state.driver.refuse_fork()
    known = _known.get(key)
    if known is not None:
        return known
    number = state.use(state.driver.event_open, handle)
    event = Event.__new__(Event)
    event._hold(state, number, handle, key)
    return event


# Looked up at each send, as every step of the protocol is.
ForkingPickler.register(Event, lambda event: reduce_event(event))
