"""How processes share device memory, over any `Driver`.

One send and its receipt, step by step:

1. The sender exports the allocation in which the tensor lies, counts the send
   in the table of the allocation's owner, and records an event.
2. The message carries the handles of allocation and event, the slot of the
   count, and where in the allocation the tensor lies.
3. The receiver takes the count, lets its later work wait for the event, and
   opens the allocation, unless it has it already: then the count goes back at
   once. One open per allocation and process, shared by all tensors in it.
4. When the receiver's last tensor in the allocation dies, it synchronises,
   closes the handle and gives the count back.
5. When the owner's last tensor dies, the allocation is freed if no count names
   it; else it waits in limbo for a later `collect`.

A received tensor can be sent on. Its send counts at the owner of the allocation
like any other, so the process in between may drop it at once, and may end when
the message has been received. The owner has to live for as long as anybody
refers to the memory, as promise P17 says.

Each step is a method of `steps`, looked up when it is called: that object is
the one seam at which a fault can be put in.
"""

import functools
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from .counts import Count, CountTable
from .driver import Driver
from .errors import ForkError, OutOfDeviceMemoryError
from .gate import Gate
from .liveness import Identity, own_identity
from .shared_file import Address

# Events are scarce on a device; beyond this many the sender synchronises instead.
MAX_EVENTS_IN_USE = 128
# So few are looked through at each send; beyond, when their number has doubled.
FEW_SENDS = 16


@dataclass(eq=False)
class Allocation:
    """Device memory as this process refers to it; the protocol holds these."""

    base: int
    nbytes: int
    number: int
    handle: bytes | None = None
    table: CountTable | None = None
    held: Count | None = None  # the count of the message it came in; None: own
    storage: "weakref.ref[DeviceStorage] | None" = None
    finished: bool = False

    def is_referred_to_here(self) -> bool:
        """Say whether a storage of this process refers to it."""
        return self.storage is not None and self.storage() is not None


class DeviceStorage:
    """What tensors hold: while it lives, this process refers to the allocation."""

    def __init__(self, sharing: "Sharing", allocation: Allocation) -> None:
        self.sharing = sharing
        self.allocation = allocation
        allocation.storage = weakref.ref(self)
        dropped = functools.partial(sharing.dropped, allocation)
        finalizer = weakref.finalize(self, sharing.gate.soon, dropped)
        finalizer.atexit = False  # `Sharing.leave` sees to the end of the process

    @property
    def nbytes(self) -> int:
        """The size of the allocation in bytes."""
        return self.allocation.nbytes

    def data_ptr(self) -> int:
        """Return the address of the allocation in this process."""
        return self.allocation.base

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("A device storage cannot be pickled; send a tensor in it.")


class Message(NamedTuple):
    """What travels: no data, only names of things."""

    sender: Identity
    memory: bytes
    nbytes: int
    allocation: int
    table: Address
    slot: int
    serial: int
    event: bytes | None


class Send(NamedTuple):
    """A send of this process whose event the receiver may still need."""

    slot: Count
    event: int


class Steps:
    """The steps of the protocol, each of them replaceable."""

    def refuse_fork(self, driver: Driver) -> None:
        """Raise ForkError in a child forked from a user of the device.

        Clause CUDA-1.
        """
        if driver.forked():
            raise ForkError(
                f"The device {driver.name} was used before this process was forked. "
                "A device cannot be used across a fork: start processes with the "
                "method 'spawn' or 'forkserver'."
            )

    def offset_in_allocation(self, driver: Driver, pointer: int) -> int:
        """Return where in its allocation a pointer lies. Clauses CUDA-2 and CUDA-7."""
        return pointer - driver.allocation_of(pointer)[0]

    def state_of(self, tensor: Any) -> dict[str, Any] | None:
        """Return what a tensor has besides its data: flag and grad. Clause CUDA-31."""
        if tensor.grad is None and not tensor.requires_grad:
            return None
        return {"requires_grad": tensor.requires_grad, "_grad": tensor.grad}

    def count_send(self, allocation: Allocation) -> Count:
        """Count a send at the allocation's owner. Clauses CUDA-4 and CUDA-35."""
        assert allocation.table is not None, "an exported allocation has a table"
        return allocation.table.claim(allocation.number)

    def record_event(self, driver: Driver) -> int:
        """Record an event behind all work before the send. Clause CUDA-6."""
        event = driver.event_create()
        driver.event_record(event)
        return event

    def wait_for_event(self, driver: Driver, handle: bytes) -> None:
        """Order the receiver's later work after the event. Clause CUDA-6."""
        event = driver.event_open(handle)
        driver.event_wait(event)
        driver.event_destroy(event)

    def complete_instead(self, driver: Driver) -> None:
        """Finish the work before a send that gets no event. Clause CUDA-24."""
        driver.synchronize()

    def queue_wait(self, driver: Driver, event: int) -> None:
        """Order the later work after an event that a program holds. Clause CUDA-29."""
        driver.event_wait(event)

    def open_allocation(self, driver: Driver, message: Message) -> int:
        """Map the sender's memory and return its base here. Clause CUDA-3."""
        return driver.open_handle(message.memory)

    def close_allocation(self, driver: Driver, allocation: Allocation) -> None:
        """Finish the receiver's work, unmap, then give the count back.

        Clauses CUDA-4 and CUDA-25.
        """
        driver.synchronize()
        driver.close_handle(allocation.base)
        if allocation.held is not None:
            allocation.held.release()

    def may_free(self, allocation: Allocation) -> bool:
        """Say whether no message and no receiver refers to it. Clause CUDA-4."""
        table = allocation.table
        return table is None or allocation.number not in table.counted()

    def make_room(self, collect: Callable[[], None]) -> None:
        """Free what can be freed before memory is said to be short. Clause CUDA-26."""
        collect()

    def free_allocation(self, driver: Driver, allocation: Allocation) -> None:
        """Finish the owner's work, then free. Clauses CUDA-4 and CUDA-25."""
        driver.synchronize()
        driver.free(allocation.base)


steps = Steps()


@dataclass
class Sharing:
    """All that one process shares on one device."""

    driver: Driver
    gate: Gate = field(default_factory=Gate)
    limbo: list[Allocation] = field(default_factory=list)
    _sends: list[Send] = field(default_factory=list)
    _retire_at: int = FEW_SENDS
    _own_table: CountTable | None = None
    _last_number: int = 0
    _left: bool = False

    def __post_init__(self) -> None:
        # By memory handle, which names an allocation in all processes alike.
        self._known: dict[bytes, Allocation] = {}
        self._at: weakref.WeakValueDictionary[int, Allocation]
        self._at = weakref.WeakValueDictionary()
        self._tables: weakref.WeakValueDictionary[bytes, CountTable]
        self._tables = weakref.WeakValueDictionary()
        # What `events` holds, by handle; untyped, since that module imports this one.
        self.events: weakref.WeakValueDictionary[bytes, Any]
        self.events = weakref.WeakValueDictionary()

    # Memory

    def allocate(self, nbytes: int) -> DeviceStorage:
        """Allocate device memory, collecting first if there is no room.

        Raises OutOfDeviceMemoryError, ForkError.
        """
        steps.refuse_fork(self.driver)
        with self.gate:
            try:
                base = self.driver.allocate(nbytes)
            except OutOfDeviceMemoryError:
                steps.make_room(self._collect)
                base = self.driver.allocate(nbytes)
            self._last_number += 1
            return self._storage(Allocation(base, nbytes, self._last_number))

    def adopt(self, base: int, nbytes: int) -> DeviceStorage:
        """Return the storage at a base that the driver has adopted, or that is known.

        Runs inside the gate.
        """
        allocation = self._at.get(base)
        if allocation is None or allocation.finished:
            self._last_number += 1
            allocation = Allocation(base, nbytes, self._last_number)
        if allocation in self.limbo:
            self.limbo.remove(allocation)
        return self._storage(allocation)

    def _storage(self, allocation: Allocation) -> DeviceStorage:
        self._at[allocation.base] = allocation
        storage = allocation.storage and allocation.storage()
        return storage or DeviceStorage(self, allocation)

    def collect(self) -> None:
        """Free what receivers have given back. Clause CUDA-4; raises ForkError."""
        steps.refuse_fork(self.driver)
        with self.gate:
            self._collect()

    def _collect(self) -> None:
        self._retire_sends()
        for allocation in list(self.limbo):
            if steps.may_free(allocation):
                self.limbo.remove(allocation)
                self._free(allocation)

    def _free(self, allocation: Allocation) -> None:
        self._forget(allocation)
        steps.free_allocation(self.driver, allocation)

    def dropped(self, allocation: Allocation) -> None:
        """See to an allocation whose last storage of this process died.

        Runs inside the gate. Clause CUDA-4.
        """
        if self.driver.forked() or allocation.finished or allocation in self.limbo:
            return
        if self._left or allocation.is_referred_to_here():
            return  # all was given back, or this was received again
        if allocation.held is not None:
            self._close(allocation)
        elif steps.may_free(allocation):
            self._free(allocation)
        else:
            self.limbo.append(allocation)
        self._retire_sends()

    def _close(self, allocation: Allocation) -> None:
        """Close what was received, whether or not its owner lives. Clause CUDA-17."""
        self._forget(allocation)
        steps.close_allocation(self.driver, allocation)

    def _forget(self, allocation: Allocation) -> None:
        """Find it no more, since its address is used again. Clause CUDA-12."""
        allocation.finished = True
        self._known.pop(allocation.handle or b"", None)

    # Sending

    def send(self, storage: DeviceStorage) -> Message:
        """Count a send, record an event, and return what the receiver needs.

        Raises ForkError; DeviceError if too many sends are under way.
        """
        steps.refuse_fork(self.driver)
        with self.gate:
            if len(self._sends) >= self._retire_at:
                self._retire_sends()
            allocation = storage.allocation
            handle, table = self._export(allocation)
            count = steps.count_send(allocation)
            event = self._event_of(count)
            return Message(
                own_identity(), handle, allocation.nbytes, allocation.number,
                table.address, count.slot, count.serial, event,
            )  # fmt: skip

    def _export(self, allocation: Allocation) -> tuple[bytes, CountTable]:
        """Return handle and table, of a received one those it came with.

        Clauses CUDA-19 and CUDA-20.
        """
        if allocation.handle is None or allocation.table is None:
            allocation.handle = self.driver.ipc_handle(allocation.base)
            if self._own_table is None:
                self._own_table = CountTable.create()
                self._tables[self._own_table.file.token] = self._own_table
            allocation.table = self._own_table
            self._known[allocation.handle] = allocation
        return allocation.handle, allocation.table

    def _event_of(self, count: Count) -> bytes | None:
        if len(self._sends) >= MAX_EVENTS_IN_USE:
            steps.complete_instead(self.driver)
            return None
        event = steps.record_event(self.driver)
        self._sends.append(Send(count, event))
        return self.driver.event_handle(event)

    def _retire_sends(self) -> None:
        """Destroy the events that no receiver needs any more."""
        sends, self._sends = self._sends, []
        for send in sends:
            if send.slot.is_in_transit():
                self._sends.append(send)
            else:
                self.driver.event_destroy(send.event)
        self._retire_at = min(max(FEW_SENDS, 2 * len(self._sends)), MAX_EVENTS_IN_USE)

    def destroy_event(self, number: int) -> None:
        """See to an event whose object died; runs inside the gate."""
        if not self.driver.forked() and not self._left:
            self.driver.event_destroy(number)

    # Receiving

    def receive(self, message: Message) -> DeviceStorage:
        """Return the storage that a message names, opened at most once here.

        Clauses CUDA-9, CUDA-10, CUDA-11, CUDA-21 and CUDA-28.

        Raises ForkError; OwnerGoneError if the sender has ended; ReceivedTwiceError;
        DeviceHandleError if the memory is gone.
        """
        steps.refuse_fork(self.driver)
        with self.gate:
            table = self._tables.get(message.table.token)
            if table is None:
                table = CountTable.join(message.table)
                self._tables[message.table.token] = table
            count = Count(table, message.slot, message.serial)
            count.take()
            try:
                return self._receive(message, count)
            except BaseException:
                count.release()
                raise

    def _receive(self, message: Message, count: Count) -> DeviceStorage:
        if message.event is not None and message.sender != own_identity():
            steps.wait_for_event(self.driver, message.event)
        allocation = self._known.get(message.memory)
        if allocation is None:
            allocation = self._open(message, count)
        else:
            count.release()
        if allocation in self.limbo:  # our own, on its way back
            self.limbo.remove(allocation)
        return self._storage(allocation)

    def _open(self, message: Message, count: Count) -> Allocation:
        base = steps.open_allocation(self.driver, message)
        count.keep()
        allocation = Allocation(
            base, message.nbytes, message.allocation, message.memory, count.table, count
        )
        self._known[message.memory] = allocation
        return allocation

    # The end

    def leave(self) -> None:
        """End this process's part: close what it received, free what it owns.

        Warns (RuntimeWarning) if receivers still refer to its memory.
        """
        if self.driver.forked():
            return
        with self.gate:
            for allocation in list(self._known.values()):
                if allocation.held is not None:
                    self._close(allocation)
            counted = self._own_table.counted() if self._own_table else ()
            self._left = True
            self.driver.leave()
        if counted:
            warnings.warn(
                f"This process ends while messages or receivers refer to "
                f"{len(counted)} of its allocations on {self.driver.name}; their "
                "memory goes with it. Keep a sender of device tensors alive until "
                "its receivers have dropped them.",
                RuntimeWarning,
                stacklevel=2,
            )
