"""Events that programs hold: an order between processes beyond that of a send.

A send orders what was written before it. Where a tensor is shared already, a later
write needs an event: its writer records one and sends it, and the reader lets its work
come after it. Nobody's host waits.
"""

import functools
import weakref
from multiprocessing.reduction import ForkingPickler
from typing import Any

from . import protocol
from .devices import sharing_on


class Event:
    """A point in the work of a process. Clause CUDA-29.

    The process that made it keeps it until all that it was sent to have received it.

    Raises DeviceUnavailableError; ForkError.
    """

    def __init__(self, device: str | None = None) -> None:
        sharing = sharing_on(device)
        protocol.steps.refuse_fork(sharing.driver)
        with sharing.gate:
            number = sharing.driver.event_create()
            handle = sharing.driver.event_handle(number)
        self._hold(sharing, number, handle)

    def _hold(self, sharing: protocol.Sharing, number: int, handle: bytes) -> None:
        self._sharing, self._number, self._handle = sharing, number, handle
        sharing.events[handle] = self
        destroy = functools.partial(sharing.destroy_event, number)
        finalizer = weakref.finalize(self, sharing.gate.soon, destroy)
        finalizer.atexit = False  # `Sharing.leave` sees to the end of the process

    def record(self) -> None:
        """Let the event stand for all work that this process has queued so far."""
        protocol.steps.refuse_fork(self._sharing.driver)
        with self._sharing.gate:
            self._sharing.driver.event_record(self._number)

    def wait(self) -> None:
        """Let the later work of this process come after the event. Clause CUDA-29."""
        protocol.steps.refuse_fork(self._sharing.driver)
        with self._sharing.gate:
            protocol.steps.queue_wait(self._sharing.driver, self._number)

    def synchronize(self) -> None:
        """Wait until the work that the event stands for is done."""
        protocol.steps.refuse_fork(self._sharing.driver)
        with self._sharing.gate:
            self._sharing.driver.event_synchronize(self._number)


def reduce_event(event: Event) -> tuple[Any, ...]:
    """Send an event, own or received: its handle travels. Clause CUDA-29."""
    protocol.steps.refuse_fork(event._sharing.driver)
    return rebuild_event, (event._sharing.driver.name, event._handle)


def rebuild_event(device: str, handle: bytes) -> Event:
    """Receive an event; where it is known already it is the same object.

    Raises ForkError; DeviceHandleError if its maker has given it up.
    """
    sharing = sharing_on(device, handle=handle)
    protocol.steps.refuse_fork(sharing.driver)
    known: Event | None = sharing.events.get(handle)
    if known is not None:
        return known
    with sharing.gate:
        number = sharing.driver.event_open(handle)
    event = Event.__new__(Event)
    event._hold(sharing, number, handle)
    return event


def register() -> None:
    """Teach the pickler of multiprocessing's channels to send events."""
    ForkingPickler.register(Event, reduce_event)
