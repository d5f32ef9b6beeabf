"""A simulated device: CUDA's rules kept in host memory, and their breach punished.

It exists so that the protocol can be developed and judged without a device, and
so that mistakes which a real device lets pass most of the time fail every time:
a forgotten wait reads old data, memory freed too early reads 0xDB, a pointer of
another process is refused. It has no threads. It is not CUDA: everything that
it yields is called `sim`.

`docs/guides/cuda-protocol.md` has the rules, and `tests/cuda` a test for each.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from ...descriptors import OwnedDescriptor
from ..driver import Driver, not_exportable
from ..errors import DeviceError, DeviceHandleError, IllegalAddressError
from ..shared_file import TOKEN_BYTES, Address, SharedFile, find_in
from .memory import (
    ALIGNMENT,
    EXPORTABLE,
    FIND_IT,
    UNEXPORTABLE,
    VARIABLE,
    SimulatedMemory,
    file_name,
)
from .streams import SimulatedStreams

DEVICES = 2
DEFAULT_MEMORY = 64 << 20
HANDLE_BYTES = 64
GRANULARITY = 64 << 10
"""The sizes of virtual memory are multiples of so many bytes."""
# A device (pid, descriptor, token), a row of one of its tables and the serial.
_HANDLE = struct.Struct(f"<4sqq{TOKEN_BYTES}sqq")
_MEMORY, _EVENT = b"mem\0", b"evt\0"
# Pointers of different processes lie apart, and none is ever given out twice.
_SPAN = 1 << 40


@dataclass
class _Mapping:
    """An allocation as this process addresses it; own ones are never opened."""

    base: int
    index: int
    serial: int
    offset: int
    nbytes: int
    opens: int = 0
    range: int = 0  # of virtual memory: where the range of its pieces begins


Method = TypeVar("Method", bound=Callable[..., Any])


def _alone(method: Method) -> Method:
    """Let a method have the device to itself, without what has died."""

    @functools.wraps(method)
    def locked(self: SimulatedDevice, /, *arguments: Any) -> Any:
        self.refuse_fork()
        return self._memory.file.locked(without_the_dead, self, *arguments)

    def without_the_dead(self: SimulatedDevice, /, *arguments: Any) -> Any:
        self._memory.remove_dead_processes()
        self._memory.release_unreferenced()
        return method(self, *arguments)

    return cast("Method", locked)


class SimulatedDevice(Driver):
    """A `Driver` over host memory; one object per process and device."""

    def __init__(self, memory: SimulatedMemory, index: int = 0) -> None:
        super().__init__(f"sim:{index}", f"sim:{index}")
        self._memory = memory
        self._streams = SimulatedStreams(memory)
        self._next_base = _SPAN * (memory.own_process + 1)
        self._mappings: dict[int, _Mapping] = {}
        self._events: dict[int, tuple[int, int]] = {}
        self._last_event = 0

    @classmethod
    def create(cls, memory: int = DEFAULT_MEMORY, index: int = 0) -> SimulatedDevice:
        """Make a new device; other processes `join` it by its address."""
        return cls(SimulatedMemory.create(memory, index), index)

    @classmethod
    def join(cls, address: Address, index: int = 0) -> SimulatedDevice:
        """Use the device that another process uses.

        Raises MakerGoneError if that process no longer does.
        """
        file = SharedFile.join(address, file_name(index))
        return cls(SimulatedMemory(file), index)

    @property
    def address(self) -> Address:
        """Where other processes find the device while this process uses it."""
        return self._memory.file.address

    # Memory

    @_alone
    def allocate(self, nbytes: int) -> int:
        if nbytes <= 0:
            raise DeviceError(f"An allocation needs at least 1 byte, not {nbytes}.")
        return self._map(self._memory.reserve(nbytes)).base

    def _map(self, index: int) -> _Mapping:
        row = self._memory.allocations[index]
        base = self._next_base
        # One unit between two mappings: running over the end hits nothing.
        self._next_base += (row["nbytes"].item() // ALIGNMENT + 2) * ALIGNMENT
        serial, _, offset, nbytes = row.tolist()
        self._mappings[base] = _Mapping(base, index, serial, offset, nbytes)
        return self._mappings[base]

    @_alone
    def free(self, base: int) -> None:
        mapping = self._mappings.get(base)
        if mapping is None or mapping.opens:
            raise IllegalAddressError(
                f"{base:#x} is not the base of an allocation of this process: "
                "it was freed before, lies inside one, or was opened from a "
                "handle (close that instead)."
            )
        del self._mappings[base]
        self._memory.release(mapping.index)

    def _mapping_of(self, pointer: int) -> _Mapping:
        for mapping in self._mappings.values():
            if mapping.base <= pointer < mapping.base + mapping.nbytes:
                return mapping
        raise IllegalAddressError(
            f"The byte at {pointer:#x} is not within an allocation that this process "
            "made or has open; a pointer of another process means nothing here."
        )

    def _places_of(self, pointer: int, nbytes: int) -> Iterator[tuple[int, int]]:
        """Yield where bytes lie in the arena: offset and size of each run of them."""
        while nbytes:
            mapping = self._mapping_of(pointer)
            within = pointer - mapping.base
            size = min(nbytes, mapping.nbytes - within)
            yield mapping.offset + within, size
            pointer, nbytes = pointer + size, nbytes - size

    @_alone
    def memory_info(self) -> tuple[int, int]:
        return self._memory.free_bytes(), len(self._memory.arena)

    # Handles

    @_alone
    def allocation_of(self, pointer: int) -> tuple[int, int]:
        mapping = self._mapping_of(pointer)
        return mapping.base, mapping.nbytes

    @_alone
    def ipc_handle(self, pointer: int) -> bytes:
        mapping = self._mapping_of(pointer)
        if mapping.opens:
            raise DeviceHandleError(
                f"The allocation at {mapping.base:#x} belongs to another process; "
                "only that one can export it."
            )
        return self._pack(_MEMORY, mapping.index, mapping.serial)

    @_alone
    def open_handle(self, handle: bytes) -> int:
        index, serial = self._unpack(_MEMORY, handle)
        row = self._memory.allocations[index]
        if not serial or row["serial"] != serial:
            raise DeviceHandleError(
                "The allocation that this handle names has been freed; its "
                "process has to keep it until the receiver is done with it."
            )
        if row["maker"] == self._memory.own_process:
            raise DeviceHandleError(
                "A memory handle cannot be opened in the process that exported "
                "it; use the original pointer."
            )
        mapping = self._opened(serial) or self._map(index)
        mapping.opens += 1
        self._memory.opens[index, self._memory.own_process] = True
        return mapping.base

    def _opened(self, serial: int) -> _Mapping | None:
        found = (each for each in self._mappings.values() if each.serial == serial)
        return next(found, None)

    @_alone
    def close_handle(self, base: int) -> None:
        mapping = self._mappings.get(base)
        if mapping is None or not mapping.opens:
            raise DeviceHandleError(
                f"{base:#x} is not the base of an allocation opened from a handle, "
                "or was closed as often as it was opened."
            )
        mapping.opens -= 1
        if not mapping.opens:
            del self._mappings[base]
            self._memory.opens[mapping.index, self._memory.own_process] = False

    def _pack(self, kind: bytes, index: int, serial: int) -> bytes:
        packed = _HANDLE.pack(kind, *self.address, index, serial)
        return packed.ljust(HANDLE_BYTES, b"\0")

    def _unpack(self, kind: bytes, handle: bytes) -> tuple[int, int]:
        if len(handle) != HANDLE_BYTES or not handle.startswith(kind):
            raise DeviceHandleError(
                "This is no handle of the kind that is opened here."
            )
        _, _, _, token, index, serial = _HANDLE.unpack_from(handle)
        if token != self._memory.file.token:
            raise DeviceHandleError(
                "This handle belongs to another simulated device than the one this "
                f"process uses. {FIND_IT}"
            )
        return index, serial

    # Virtual memory

    @_alone
    def map_new(
        self, sizes: Sequence[int], is_exportable: bool
    ) -> tuple[int, list[int]]:
        pieces = [-(-size // GRANULARITY) * GRANULARITY for size in sizes]
        maker = EXPORTABLE if is_exportable else UNEXPORTABLE
        # If one finds no room, nothing refers to those before it, which are released.
        made = [self._memory.reserve(size, maker) for size in pieces]
        return self._map_side_by_side(made), pieces

    def _map_side_by_side(self, indices: Sequence[int]) -> int:
        """Map allocations without a gap; they are open, so `free` refuses them."""
        base = self._next_base
        for index in indices:
            self._memory.set_open(index, True)
            mapping = self._map(index)
            mapping.opens, mapping.range = 1, base
            self._next_base = mapping.base + mapping.nbytes
        self._next_base += ALIGNMENT
        return base

    def _pieces_at(self, base: int) -> list[_Mapping]:
        return [each for each in self._mappings.values() if each.range == base]

    @_alone
    def export_mapped(self, base: int) -> list[OwnedDescriptor]:
        indices = [mapping.index for mapping in self._pieces_at(base)]
        makers = self._memory.allocations["maker"]
        if any(makers[index] == UNEXPORTABLE for index in indices):
            raise not_exportable(base)
        return [self._memory.reference(index) for index in indices]

    @_alone
    def map_received(self, descriptors: Sequence[int], sizes: Sequence[int]) -> int:
        indices = [self._memory.referred(fd) for fd in descriptors]
        if [*self._memory.allocations["nbytes"][indices]] != [*sizes]:
            raise DeviceHandleError(
                f"A message claims pieces of {sizes} bytes that have other sizes. Send "
                "the tensor again."
            )
        return self._map_side_by_side(indices)

    @_alone
    def unmap(self, base: int) -> None:
        for mapping in self._pieces_at(base):
            del self._mappings[mapping.base]
            self._memory.set_open(mapping.index, False)

    # Work

    @_alone
    def copy_to_device(self, pointer: int, data: bytes) -> None:
        done = 0
        for offset, size in list(self._places_of(pointer, len(data))):
            self._streams.queue_copy(offset, data[done : done + size])
            done += size

    @_alone
    def copy_to_host(self, pointer: int, nbytes: int) -> bytes:
        places = list(self._places_of(pointer, nbytes))
        self._streams.complete(self._memory.own_process)
        arena = self._memory.arena
        return b"".join(arena[at : at + size].tobytes() for at, size in places)

    @_alone
    def synchronize(self) -> None:
        self._streams.complete(self._memory.own_process)

    # Events

    @_alone
    def event_create(self) -> int:
        return self._hold_event(self._streams.new_event())

    def _hold_event(self, index: int) -> int:
        serial = int(self._memory.events[index]["serial"])
        self._last_event += 1
        self._events[self._last_event] = index, serial
        return self._last_event

    def _event(self, event: int) -> Any:
        if event not in self._events:
            raise DeviceHandleError(
                f"This process has no event {event}, or destroyed it."
            )
        return self._streams.event(*self._events[event])

    @_alone
    def event_destroy(self, event: int) -> None:
        row = self._event(event)
        if row["maker"] == self._memory.own_process:
            row["serial"] = 0
        del self._events[event]

    @_alone
    def event_record(self, event: int) -> None:
        self._streams.record(self._event(event))

    @_alone
    def event_handle(self, event: int) -> bytes:
        self._event(event)
        return self._pack(_EVENT, *self._events[event])

    @_alone
    def event_open(self, handle: bytes) -> int:
        index, serial = self._unpack(_EVENT, handle)
        self._streams.event(index, serial)
        return self._hold_event(index)

    @_alone
    def event_wait(self, event: int) -> None:
        self._event(event)
        self._streams.queue_wait(*self._events[event])

    @_alone
    def event_synchronize(self, event: int) -> None:
        row = self._event(event)
        self._streams.apply(int(row["recorder"]), int(row["position"]))

    def close(self) -> None:
        if not self.forked():
            memory = self._memory
            memory.file.locked(memory.remove_process, memory.own_process)
            memory.file.close()


def device_of(handle: bytes) -> Address:
    """Return where the device is found to which a handle belongs."""
    if len(handle) != HANDLE_BYTES or handle[:4] not in (_MEMORY, _EVENT):
        raise DeviceHandleError("This is no handle of a simulated device.")
    _, pid, descriptor, token, _, _ = _HANDLE.unpack_from(handle)
    return Address(pid, descriptor, token)


def find_or_create(
    memory: int, handle: bytes | None = None, index: int = 0
) -> SimulatedDevice:
    """Return the simulated device `sim:<index>` of this run, a new one if need be.

    It is the one that SHAREDTENSOR_SIMULATED_DEVICE names (for `sim:1` it ends in
    `_1`), else the one that the parent uses, else the one to which a received handle
    belongs. From then on the variable names it for the children of this process.

    Raises MakerGoneError if the variable names a device that is gone.
    """
    variable = f"{VARIABLE}_{index}" if index else VARIABLE
    address = _address_in_environment(variable)
    parent = multiprocessing.parent_process()
    if address is None and parent is not None and parent.pid is not None:
        # A forkserver started before the device was used has no such variable.
        address = find_in(parent.pid, file_name(index))
    if address is None and handle is not None:
        address = device_of(handle)
    if address is None:
        device = SimulatedDevice.create(memory, index)
    else:
        device = SimulatedDevice.join(address, index)
    pid, descriptor, token = device.address
    os.environ[variable] = f"{pid}:{descriptor}:{token.hex()}"
    return device


def _address_in_environment(variable: str) -> Address | None:
    text = os.environ.get(variable)
    if not text:
        return None
    try:
        pid, descriptor, token = text.split(":")
        return Address(int(pid), int(descriptor), bytes.fromhex(token))
    except ValueError:
        raise DeviceError(
            f"{variable} is {text!r}, not '<pid>:<descriptor>:<token>'; it is set by "
            "the library and should not be set by hand. Unset it."
        ) from None
