"""How processes share device memory, over any `Driver`.

One send and its receipt, step by step:

1. The sender exports the allocation in which the tensor lies, counts the send
   in the table of the allocation's maker, and records an event.
2. The message carries the handles of allocation and event, the slot of the
   count, and where in the allocation the tensor lies.
3. The receiver takes the count, lets its later work wait for the event, and
   opens the allocation, unless it has it already: one open per allocation and
   process, shared by all tensors in it.
4. The wait may be pending for long, and the sender has to keep the event for it.
   When the receiver next synchronises the wait is over: then it keeps the count,
   or releases it where the allocation was open already.
5. When the receiver's last tensor in the allocation dies, it synchronises,
   closes the handle and releases the count.
6. When the maker's last tensor dies, the allocation is freed if no count names
   it; else it waits in limbo for a later `collect`.

A received tensor can be sent on. Its send counts at the maker of the allocation
like any other, so the process in between may drop it at once, and may end when
the message has been received; it has waited before for what it received itself.
The maker has to live for as long as anybody refers to the memory, as promise P17
says.

The functions are in this order. Those that programs lead to use the device by
`DeviceState.use`; the others are their steps, and expect their caller to do so.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from collections.abc import Callable

from .. import transport
from ..atomic import Arguments, Result
from .counts import Count, CountTable
from .driver import Driver
from .errors import DeviceError, OutOfDeviceMemoryError
from .liveness import own_identity
from .shared_file import Address
from .state import (
    FEW_EVENTS,
    Allocation,
    DeviceState,
    DeviceStorage,
    Job,
    Message,
    SentEvent,
    name_of,
)

# Events are scarce on a device; beyond this many the sender synchronises instead.
MAX_EVENTS_IN_USE = 128
# A receiver that never synchronises by itself does when it has so many waits pending.
MAX_PENDING_WAITS = 64


# Own memory


def allocate(state: DeviceState, nbytes: int) -> DeviceStorage:
    """Allocate device memory.

    Raises OutOfDeviceMemoryError, ForkError.
    """
    return state.use(allocate_storage, state, nbytes)


def allocate_storage(state: DeviceState, nbytes: int) -> DeviceStorage:
    """Return the storage of new memory."""
    base = allocate_or_collect(state, state.driver.allocate, nbytes)
    return refer_to(state, state.add_own(base, nbytes))


def duplicate(storage: DeviceStorage) -> DeviceStorage:
    """Return a copy of a storage, by way of the host.

    Raises OutOfDeviceMemoryError.
    """
    driver, nbytes = storage.state.driver, storage.nbytes
    made = allocate_storage(storage.state, nbytes)
    content = driver.copy_to_host(storage.data_ptr(), nbytes)
    driver.copy_to_device(made.data_ptr(), content)
    return made


def allocate_or_collect(
    state: DeviceState, allocate: Callable[[*Arguments], Result], *arguments: *Arguments
) -> Result:
    """Return what a driver allocates; collect before memory is short. Clause CUDA-26.

    Raises OutOfDeviceMemoryError.
    """
    try:
        return allocate(*arguments)
    except OutOfDeviceMemoryError:
        free_uncounted(state)
        return allocate(*arguments)


def find_around(state: DeviceState, pointer: int) -> Allocation | None:
    """Return the allocation that this process refers to and a pointer lies in."""
    for allocation in list(state.by_base.values()):
        if 0 <= pointer - allocation.base < allocation.nbytes:
            return None if allocation.finished else allocation
    return None


def adopt(state: DeviceState, base: int, nbytes: int) -> DeviceStorage:
    """Return the storage of memory that the driver has adopted just now."""
    return refer_to(state, state.add_own(base, nbytes))


def refer_to(state: DeviceState, allocation: Allocation) -> DeviceStorage:
    """Return the storage of an allocation, one for all tensors in it.

    Clauses CUDA-9 and CUDA-10.
    """
    if allocation in state.limbo:  # our own, on its way back
        state.limbo.remove(allocation)
    state.by_base[allocation.base] = allocation
    return allocation.live_storage() or new_storage(state, allocation)


def new_storage(state: DeviceState, allocation: Allocation) -> DeviceStorage:
    """Return a storage whose end releases the allocation."""
    storage = DeviceStorage(state, allocation)
    end = functools.partial(release, state, allocation)
    finalizer = weakref.finalize(storage, state.lock.run_soon, end)
    finalizer.atexit = False  # `shut_down` sees to the end of the process
    allocation.finalizer = finalizer
    return storage


# Sending


def send(storage: DeviceStorage) -> Message:
    """Return what a receiver needs: of a message, or of bytes of the program.

    Raises ForkError; DeviceError if too many sends are under way.
    """
    step = announce if transport.is_in_a_message() else offer
    return storage.state.use(step, storage.state, storage.allocation)


def offer(state: DeviceState, allocation: Allocation) -> Message:
    """Return what bytes say, for which nothing is kept. Clauses CUDA-36, CUDA-37."""
    finish_work(state)  # an event would have to be kept for the readers
    handle, table = export(state, allocation)
    table.offer(allocation.number)
    names = handle, allocation.nbytes, allocation.number, table.address
    return Message(own_identity(), *names)


def announce(state: DeviceState, allocation: Allocation) -> Message:
    """Count a send of an allocation and record its event.

    Clause CUDA-15: the death of a process in between takes no order from the others.
    """
    if len(state.sent_events) >= state.retire_at:
        retire_events(state)
    if allocation.held is not None:
        # The next receiver waits for an event of this process alone, and it would
        # not come after what the maker wrote if this one were killed before.
        finish_waits(state)
    handle, table = export(state, allocation)
    try:
        count = count_send(table, allocation)
        event = record_event(state, count)
        undo = functools.partial(withdraw, state, count)
        transport.undo_unless_sent(functools.partial(state.lock.run_soon, undo))
        return Message(
            own_identity(), handle, allocation.nbytes, allocation.number,
            table.address, count.slot, count.serial, event,
        )  # fmt: skip
    except BaseException:
        if table.claimed is not None:  # whatever has interrupted this
            withdraw(state, table.claimed)
        raise
    finally:
        table.claimed = None


def finish_waits(state: DeviceState) -> None:
    """Complete the waits of this process for the events of others."""
    if state.after_waits:
        finish_work(state)


def offset_in_allocation(storage: DeviceStorage, pointer: int) -> int:
    """Return where in its allocation a pointer lies. Clauses CUDA-2 and CUDA-7.

    The driver is not asked: of an opened pointer it may tell the block, in which an
    allocation lies with others.
    """
    return pointer - storage.data_ptr()


def export(state: DeviceState, allocation: Allocation) -> tuple[bytes, CountTable]:
    """Return handle and table, of a received one those that it came with.

    Clauses CUDA-19 and CUDA-20.
    """
    if allocation.handle is None or allocation.table is None:
        allocation.handle = state.driver.ipc_handle(allocation.base)
        allocation.table = own_table(state)
        allocation.name = name_of(allocation.table.address, allocation.number)
        state.known[allocation.name] = allocation
    return allocation.handle, allocation.table


def own_table(state: DeviceState) -> CountTable:
    """Return the table of this process, made when it is first asked for."""
    if state.own_table is None:
        state.own_table = CountTable.create()
        state.tables[state.own_table.file.token] = state.own_table
    return state.own_table


def count_send(table: CountTable, allocation: Allocation) -> Count:
    """Count a send at the allocation's maker, whose table it is.

    Clauses CUDA-4, CUDA-13, CUDA-14 and CUDA-35.
    """
    return table.claim(allocation.number)


def record_event(state: DeviceState, count: Count) -> bytes | None:
    """Record an event behind all work before the send and return its handle.

    Where events are short that work is completed instead, and there is none. Clauses
    CUDA-6 and CUDA-24.
    """
    driver = state.driver
    if len(state.sent_events) >= MAX_EVENTS_IN_USE:
        finish_work(state)
        return None
    event = driver.event_create()
    state.sent_events.append(SentEvent(count, event))
    driver.event_record(event)
    return driver.event_handle(event)


def withdraw(state: DeviceState, count: Count) -> None:
    """Count a send no more whose message was refused. Clauses CUDA-4 and CUDA-27.

    Its event is destroyed, and its allocation freed, like those of messages that were
    received. Where it was written nevertheless, before an interruption, it is refused.
    """
    if not state.ended and not state.driver.forked():  # else it is the parent's
        count.withdraw()


def retire_events(state: DeviceState) -> None:
    """Destroy the events that no receiver needs any more. Clause CUDA-27.

    Whatever interrupts this, the others are kept. None is destroyed twice: the second
    time its number may be that of a new one.
    """
    in_use = 0
    while in_use < len(state.sent_events):
        if state.sent_events[in_use].count.is_in_transit():
            in_use += 1
        else:
            state.driver.event_destroy(state.sent_events.pop(in_use).event)
    state.retire_at = min(max(FEW_EVENTS, 2 * in_use), MAX_EVENTS_IN_USE)


# Receiving


def receive(state: DeviceState, message: Message) -> DeviceStorage:
    """Return the storage that a message names, opened at most once here.

    Raises ForkError; MakerGoneError if the sender has ended; ReceivedTwiceError;
    DeviceHandleError if the memory is gone.
    """
    if state.lock.is_owned():  # and this refuses it, so it is in flight no more
        state.lock.run_soon(functools.partial(refuse, message))
    return state.use(take, state, message)


def take(state: DeviceState, message: Message) -> DeviceStorage:
    """Take the count of a message, wait for its event, and open its allocation.

    Clauses CUDA-18, CUDA-21 and CUDA-28.
    """
    count = take_count(find_table(state, message.table), message)
    finish, waits = count.release, False
    try:
        if message.event is not None and message.sender != own_identity():
            wait_for_event(state.driver, message.event)
            waits = True
        allocation = find_allocation(state, message)
        if allocation is None:
            allocation = open_allocation(state, message, count)
            finish = count.keep
        return refer_to(state, allocation)
    finally:
        if waits:
            finish_after_waits(state, finish)
        else:
            finish()


def find_table(state: DeviceState, address: Address) -> CountTable:
    """Return the table at an address, opened at most once here.

    Raises MakerGoneError.
    """
    table = state.tables.get(address.token)
    if table is None:
        table = state.tables[address.token] = CountTable.join(address)
    return table


def take_count(table: CountTable, message: Message) -> Count:
    """Make this process a receiver. Clauses CUDA-18, CUDA-34 and CUDA-36."""
    if message.event is None:  # it could not be opened if its maker had ended
        CountTable.join(table.address)
    if message.slot is None:
        return table.accept(message.allocation)
    count = Count(table, message.slot, message.serial)
    count.take()
    return count


def wait_for_event(driver: Driver, handle: bytes) -> None:
    """Order the receiver's later work after the event. Clause CUDA-6.

    Raises DeviceHandleError where there is no such event; then nothing waits.
    """
    event = driver.event_open(handle)
    driver.event_wait(event)
    driver.event_destroy(event)


def finish_after_waits(state: DeviceState, finish: Job) -> None:
    """Finish a receive when its wait is over: the sender keeps the event so long.

    What a pending wait for a destroyed event does is undefined. Clauses CUDA-6 and
    CUDA-27.
    """
    state.after_waits.append(finish)
    if len(state.after_waits) >= MAX_PENDING_WAITS:
        finish_work(state)


def finish_work(state: DeviceState) -> None:
    """Complete all work of this process, and with it its waits for others' events.

    What is to be done after them stays until it has been, whatever interrupts this; to
    do it twice is to do it once. Clauses CUDA-4 and CUDA-27.
    """
    state.driver.synchronize()
    while state.after_waits:
        state.after_waits[0]()
        del state.after_waits[0]


def find_allocation(state: DeviceState, message: Message) -> Allocation | None:
    """Return the allocation of a message if it is open here, or this process's own.

    Clauses CUDA-9, CUDA-11, CUDA-20 and CUDA-21.
    """
    return state.known.get(name_of(message.table, message.allocation))


def open_allocation(state: DeviceState, message: Message, count: Count) -> Allocation:
    """Map the sender's memory and hold its count. Clauses CUDA-3 and CUDA-10.

    Raises DeviceHandleError.
    """
    name = name_of(message.table, message.allocation)
    opened = Allocation(
        state.driver.open_handle(message.memory),
        message.nbytes,
        message.allocation,
        name,
        handle=message.memory,
        table=count.table,
        held=count,
    )
    state.known[name] = opened
    return opened


def refuse(message: Message) -> None:
    """Give back the count of a message whose device this process cannot use.

    Clause CUDA-4: what was refused is in flight no more.
    """
    with contextlib.suppress(DeviceError):
        take_count(CountTable.join(message.table), message).release()


# Releasing


def release(state: DeviceState, allocation: Allocation) -> None:
    """Close or free an allocation whose last storage of this process died.

    Clause CUDA-4. Where it is counted still, it waits in limbo.
    """
    if state.ended or state.driver.forked():
        return  # all was given back, or it is the parent's
    if allocation.finished or allocation in state.limbo:
        return
    if allocation.live_storage() is not None:
        return  # it was received again
    if allocation.pieces:
        unmap_allocation(state, allocation)
    elif allocation.held is not None:
        close_allocation(state, allocation)
    elif may_free(allocation):
        free_allocation(state, allocation)
    else:
        state.limbo.append(allocation)
    retire_events(state)


def close_allocation(state: DeviceState, allocation: Allocation) -> None:
    """Finish the receiver's work, unmap, then release the count.

    Whether or not the maker lives. Clauses CUDA-4, CUDA-17 and CUDA-25.
    """
    state.unregister(allocation)
    finish_work(state)
    state.driver.close_handle(allocation.base)
    if allocation.held is not None:
        allocation.held.release()


def may_free(allocation: Allocation) -> bool:
    """Return whether nobody refers to it. Clauses CUDA-4, CUDA-37 and CUDA-38."""
    table = allocation.table
    return table is None or table.give_up(allocation.number)


def free_allocation(state: DeviceState, allocation: Allocation) -> None:
    """Finish the maker's work, then free. Clauses CUDA-4 and CUDA-25."""
    state.unregister(allocation)
    finish_work(state)
    state.driver.free(allocation.base)


def unmap_allocation(state: DeviceState, allocation: Allocation) -> None:
    """Finish the work of this process on virtual memory, then unmap.

    The driver frees it with the last process that has it. Clauses CUDA-25, CUDA-39.
    """
    state.unregister(allocation)
    finish_work(state)
    state.driver.unmap(allocation.base)


# Collecting, and the end


def collect(state: DeviceState) -> None:
    """Free what receivers have released. Clause CUDA-4; raises ForkError."""
    state.use(free_uncounted, state)


def free_uncounted(state: DeviceState) -> None:
    """Free what is in limbo and counted no more. Clauses CUDA-4 and CUDA-27."""
    finish_waits(state)  # one's own count of what came home is given back by that
    retire_events(state)
    for allocation in list(state.limbo):
        if may_free(allocation):
            state.limbo.remove(allocation)
            free_allocation(state, allocation)


def shut_down(state: DeviceState) -> None:
    """End this process's part: close what it received, free what it owns.

    Warns (RuntimeWarning) if receivers still refer to its memory.
    """
    if state.driver.forked():
        return
    counted = state.lock.run(give_back_all, state)
    if counted:
        warnings.warn(
            f"This process ends while messages or receivers refer to "
            f"{len(counted)} of its allocations on {state.driver.name}; their "
            "memory goes with it. Keep a sender of device tensors alive until "
            "its receivers have dropped them.",
            RuntimeWarning,
            stacklevel=2,
        )


def give_back_all(state: DeviceState) -> set[int]:
    """Close and free everything; return the allocations that are counted still."""
    for allocation in list(state.known.values()):
        if allocation.pieces:
            unmap_allocation(state, allocation)
        elif allocation.held is not None:
            close_allocation(state, allocation)
    finish_waits(state)
    counted = state.own_table.counted() if state.own_table else set()
    state.ended = True
    state.driver.close()
    return counted
