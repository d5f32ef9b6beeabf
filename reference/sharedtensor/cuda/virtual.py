"""Virtual memory of a device, which the driver keeps for all who have it.

The driver makes physical memory apart from the addresses at which processes map it, and
frees it when no process maps it and no descriptor leads to it, open or in a message. So
it outlives its maker, and the protocol counts nobody. A message has a descriptor for
each piece of physical memory and no event, which would end with its sender: the sender
completes its work instead.

Bytes that a program pickles itself carry no descriptors, so no tensor in this memory is
pickled into them.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from .. import transport
from ..descriptors import OwnedDescriptor
from . import protocol
from .errors import DeviceError, DeviceHandleError
from .shared_file import TOKEN_BYTES
from .state import (
    Allocation,
    AllocationName,
    DeviceState,
    DeviceStorage,
    VirtualMessage,
)


def allocate(
    state: DeviceState, sizes: Sequence[int], is_exportable: bool
) -> DeviceStorage:
    """Return the storage of new memory, under a name that no other has.

    Its caller uses the device. Raises OutOfDeviceMemoryError; DeviceError for a size
    below 1 byte.
    """
    if not sizes or min(sizes) < 1:
        raise DeviceError(f"Virtual memory needs sizes from 1 byte on, not {sizes}.")
    make = state.driver.map_new
    base, pieces = protocol.allocate_or_collect(state, make, sizes, is_exportable)
    return remember(state, base, pieces, (secrets.token_bytes(TOKEN_BYTES), 0))


def remember(
    state: DeviceState, base: int, pieces: Sequence[int], name: AllocationName
) -> DeviceStorage:
    """Return the storage of what has been mapped, which its name leads to from now on.

    Clauses CUDA-9, CUDA-10, CUDA-21.
    """
    made = Allocation(base, sum(pieces), name=name, pieces=pieces)
    state.known[name] = made
    return protocol.refer_to(state, made)


def send(storage: DeviceStorage) -> VirtualMessage:
    """Return what a receiver needs: a name, and a descriptor for each piece.

    They are the message's. Clauses CUDA-39, CUDA-40. Raises ForkError;
    DeviceHandleError if the memory cannot be exported, or this is no message.
    """
    state, allocation = storage.state, storage.allocation
    if not transport.is_in_a_message():
        raise DeviceHandleError(
            "A tensor in virtual memory travels by descriptors, which bytes do not "
            "carry. Send it through a channel of multiprocessing."
        )
    assert allocation.name is not None, "virtual memory has a name from the beginning"
    opened = state.use(export, state, allocation)
    handles = [transport.export_opened(owned) for owned in opened]
    return VirtualMessage(allocation.name, allocation.pieces, handles)


def export(state: DeviceState, allocation: Allocation) -> list[OwnedDescriptor]:
    """Complete the work of this process and export what it maps.

    What was received is sent on like any other. Clauses CUDA-6, CUDA-20, CUDA-42,
    CUDA-43.
    """
    protocol.finish_work(state)
    return state.driver.export_mapped(allocation.base)


def receive(state: DeviceState, message: VirtualMessage) -> DeviceStorage:
    """Return the storage that a message names, mapped at most once here.

    No descriptor is left open: clause CUDA-40. Raises ForkError; DeviceHandleError;
    HandleError if a descriptor cannot be had.
    """
    owned: list[OwnedDescriptor] = []
    try:
        for handle in message.descriptors:
            owned.append(transport.take_descriptor(handle))
        return state.use(find_or_map, state, message, owned)
    finally:
        for each in owned:
            each.close()


def find_or_map(
    state: DeviceState, message: VirtualMessage, owned: Sequence[OwnedDescriptor]
) -> DeviceStorage:
    """Map what a message brings, unless this process has it: clause CUDA-10."""
    known = state.known.get(message.name)
    if known is not None:
        return protocol.refer_to(state, known)
    fds = [each.fd for each in owned]
    base = state.driver.map_received(fds, message.pieces)
    return remember(state, base, message.pieces, message.name)
