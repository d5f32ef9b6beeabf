"""What one process shares on one device: the data that the protocol works on.

There is one `DeviceState` for each device that the process uses. It is changed by
`protocol` alone, and only by a thread that holds its lock.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, TypeVar, TypeVarTuple

from ..finalizers import FinalizerLock
from .counts import Count, CountTable
from .driver import Driver
from .errors import DeviceError
from .liveness import Identity
from .shared_file import Address

# So few events are looked through at each send; beyond, when their number has doubled.
FEW_EVENTS = 16

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")
Job = Callable[[], None]


AllocationName = tuple[bytes, int]


def name_of(table: Address, number: int) -> AllocationName:
    """Return what names an allocation in all processes: its maker's table, a number.

    It is not the handle of the memory: a pool gives out the same memory again.
    """
    return table.token, number


@dataclass(eq=False)
class Allocation:
    """Device memory as this process refers to it.

    Attributes:
        base: its address in this process.
        pieces: the sizes of what is mapped there side by side, if it is virtual memory.
        name: what names it in all processes; None until it is sent.
        number: its name in the table of its maker.
        handle: its name on the device; None until it is sent.
        table: where its maker counts; None until it is sent.
        held: the count of the message that brought it; None if this process owns it.
        finished: it was closed or freed.
        finalizer: of the storage that refers to it, to which it leads.
    """

    base: int
    nbytes: int
    number: int = 0
    name: AllocationName | None = None
    pieces: Sequence[int] = ()
    handle: bytes | None = None
    table: CountTable | None = None
    held: Count | None = None
    finished: bool = False
    finalizer: weakref.finalize[Any, DeviceStorage] | None = None

    def live_storage(self) -> DeviceStorage | None:
        """Return the storage of this process that refers to it; None if it is gone.

        It is gone once its finalizer has begun. A weak reference alone would not say
        so: since Python 3.15 it can lead to an object whose finalizer is running.
        """
        found = self.finalizer and self.finalizer.peek()
        return found[0] if found else None


class DeviceStorage:
    """What tensors hold: while it lives, this process refers to the allocation."""

    def __init__(self, state: DeviceState, allocation: Allocation) -> None:
        self.state = state
        self.allocation = allocation

    @property
    def nbytes(self) -> int:
        """The size of the allocation in bytes."""
        return self.allocation.nbytes

    def data_ptr(self) -> int:
        """Return the address of the allocation in this process."""
        return self.allocation.base

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "Device memory has no bytes to pickle; send a tensor in it, a CudaTensor "
            "and none of a subclass, through a channel of multiprocessing, or pickle "
            "the NumPy array that .cpu() returns."
        )


class Message(NamedTuple):
    """What travels: no data, only names of things."""

    sender: Identity
    memory: bytes
    nbytes: int
    allocation: int
    table: Address
    slot: int | None = None  # in bytes that a program pickles itself
    serial: int = 0
    event: bytes | None = None


class VirtualMessage(NamedTuple):
    """What travels of virtual memory: a descriptor for each piece."""

    name: AllocationName
    pieces: Sequence[int]
    descriptors: list[Any]


@dataclass(frozen=True)
class SentEvent:
    """An event of this process that the receiver of a message may still need."""

    count: Count
    event: int


def used_twice(device: str) -> DeviceError:
    """Return the error of a thread that would have to wait for itself."""
    return DeviceError(
        f"A handler of a signal or a finalizer uses the device {device} while this "
        "thread is using it, and would wait for itself. Let it note what is to be "
        "done, and use the device when it has returned."
    )


@dataclass(eq=False)
class DeviceState:
    """All that one process shares on one device.

    The device is used through `use`: by one thread at a time, and never in a
    forked child. It is not reentrant: a handler of a signal runs between any two steps,
    where what it would use may be half-changed, and by using a table it would release
    the lock that the steps around it need. So it is refused.

    Attributes:
        limbo: own allocations that are dropped here and counted still.
        known: what was sent or received, by its name in all processes.
        by_base: what this process refers to, by its address.
        tables: the tables that are open, by the token of their file.
        own_table: that of this process, made with its first send.
        sent_events: events that receivers may still need.
        retire_at: how many of them there are when they are looked through.
        after_waits: what to do when this process's waits for the events of others are
            over.
        last_number: the number of the last own allocation.
        ended: all was given back, at the end of the process.
    """

    driver: Driver
    lock: FinalizerLock = field(default_factory=FinalizerLock)
    limbo: list[Allocation] = field(default_factory=list)
    known: dict[AllocationName, Allocation] = field(default_factory=dict)
    by_base: weakref.WeakValueDictionary[int, Allocation] = field(
        default_factory=weakref.WeakValueDictionary
    )
    tables: weakref.WeakValueDictionary[bytes, CountTable] = field(
        default_factory=weakref.WeakValueDictionary
    )
    own_table: CountTable | None = None
    sent_events: list[SentEvent] = field(default_factory=list)
    after_waits: list[Job] = field(default_factory=list)
    retire_at: int = FEW_EVENTS
    last_number: int = 0
    ended: bool = False

    def use(
        self, work: Callable[[*Arguments], Result], *arguments: *Arguments
    ) -> Result:
        """Return what a function returns that uses the device.

        Raises ForkError; DeviceError if this thread uses it already. Clause FAULT-2:
        whatever interrupts it, the next one can use the device.
        """
        self.driver.refuse_fork()
        if self.lock.is_owned():
            raise used_twice(self.driver.name)
        return self.lock.run(work, *arguments)

    def add_own(self, base: int, nbytes: int) -> Allocation:
        """Return an allocation of this process, under a new number."""
        self.last_number += 1
        return Allocation(base, nbytes, self.last_number)

    def unregister(self, allocation: Allocation) -> None:
        """Find it no more, since its address is used again. Clause CUDA-12."""
        allocation.finished = True
        if allocation.name is not None:
            self.known.pop(allocation.name, None)
