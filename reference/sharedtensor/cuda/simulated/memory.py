"""The memory of the simulated device: its tables and its allocator.

The whole device is one unnamed shared file (see `shared_file`):

    header | processes | allocations | events | opens | one log per process | arena

All of it is sparse: pages that nobody touched cost nothing. Every method here
expects its caller to hold the lock of the file. A process can be killed while
it holds that lock, so each change becomes valid by one last store.
"""

from __future__ import annotations

import os

import numpy as np

from ...descriptors import OwnedDescriptor
from ...names.keeper import is_locked, lock_byte
from ..errors import DeviceError, DeviceHandleError, OutOfDeviceMemoryError
from ..liveness import is_alive, own_identity
from ..shared_file import SharedFile

FILE_NAME = "simulated-device"
VARIABLE = "SHAREDTENSOR_SIMULATED_DEVICE"
FIND_IT = (
    "Call use_simulated_device() before starting the processes (or their forkserver), "
    f"so that they find it in {VARIABLE}."
)
POISON = 0xDB
ALIGNMENT = 256
MAX_PROCESSES = 64
# The makers of virtual memory, which belongs to no process.
EXPORTABLE, UNEXPORTABLE = -1, -2
MAX_ALLOCATIONS = 4096
MAX_EVENTS = 8192
LOG_BYTES = 4 << 20
PAGE = 4096

HEADER = np.dtype([("token", "V16"), ("arena_bytes", "i8"), ("next_serial", "i8")])
# In a log, positions count all bytes ever appended; `base` is the position of
# the log's first byte, `applied` that up to which the work is done.
PROCESS = np.dtype(
    [(name, "i8") for name in ("pid", "start", "base", "applied", "tail")]
)
# The serial is unique among allocations and events; 0 marks an unused row.
ALLOCATION = np.dtype(
    [(name, "i8") for name in ("serial", "maker", "offset", "nbytes")]
)
# `died`: the serial of an event that went with its process.
EVENT = np.dtype(
    [(name, "i8") for name in ("serial", "maker", "recorder", "position", "died")]
)


def file_name(index: int) -> str:
    """Return the name of the file of the simulated device with an index."""
    return f"{FILE_NAME}-{index}" if index else FILE_NAME


def _page_aligned(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


def _footprint(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


PROCESSES_AT = _page_aligned(HEADER.itemsize)
ALLOCATIONS_AT = PROCESSES_AT + _page_aligned(PROCESS.itemsize * MAX_PROCESSES)
EVENTS_AT = ALLOCATIONS_AT + _page_aligned(ALLOCATION.itemsize * MAX_ALLOCATIONS)
OPENS_AT = EVENTS_AT + _page_aligned(EVENT.itemsize * MAX_EVENTS)
LOGS_AT = OPENS_AT + MAX_ALLOCATIONS * MAX_PROCESSES
ARENA_AT = LOGS_AT + MAX_PROCESSES * LOG_BYTES


class SimulatedMemory:
    """The tables and bytes of one simulated device, and this process's row."""

    def __init__(self, file: SharedFile) -> None:
        self.file = file
        memory = file.memory
        self.header = np.ndarray(1, HEADER, memory)[0]
        self.processes = np.ndarray(MAX_PROCESSES, PROCESS, memory, PROCESSES_AT)
        self.allocations = np.ndarray(
            MAX_ALLOCATIONS, ALLOCATION, memory, ALLOCATIONS_AT
        )
        self.events = np.ndarray(MAX_EVENTS, EVENT, memory, EVENTS_AT)
        opens = (MAX_ALLOCATIONS, MAX_PROCESSES)
        self.opens = np.ndarray(opens, np.bool_, memory, OPENS_AT)
        self.logs = np.ndarray((MAX_PROCESSES, LOG_BYTES), np.uint8, memory, LOGS_AT)
        self.arena = np.ndarray(
            int(self.header["arena_bytes"]), np.uint8, memory, ARENA_AT
        )
        self.own_process = file.locked(self._add_process)

    @classmethod
    def create(cls, nbytes: int, index: int = 0) -> SimulatedMemory:
        """Make a device with that many bytes of memory."""
        arena_bytes = _footprint(nbytes)
        file = SharedFile.create(file_name(index), ARENA_AT + arena_bytes)
        np.ndarray(1, HEADER, file.memory)[0]["arena_bytes"] = arena_bytes
        return cls(file)

    def new_serial(self) -> int:
        """Return a number that no allocation or event of this device has had."""
        self.header["next_serial"] += 1
        return int(self.header["next_serial"])

    # Processes

    def _add_process(self) -> int:
        self.remove_dead_processes()
        vacant = np.flatnonzero(self.processes["pid"] == 0)
        if not len(vacant):
            raise DeviceError(
                f"The simulated device serves {MAX_PROCESSES} processes at a time; "
                "end some of them first."
            )
        row = self.processes[int(vacant[0])]
        identity = own_identity()
        row["start"] = identity.start
        row["pid"] = identity.pid
        return int(vacant[0])

    def remove_dead_processes(self) -> None:
        """Remove whatever belongs to processes that have ended."""
        for number in np.flatnonzero(self.processes["pid"]):
            row = self.processes[number]
            if not is_alive(int(row["pid"]), int(row["start"])):
                self.remove_process(int(number))

    def remove_process(self, number: int) -> None:
        """Free the allocations and events of a process and drop its pending work."""
        row = self.processes[number]
        # The positions go on counting: to an event that points into the dropped
        # work, this work is over.
        row["applied"] = row["base"] = row["tail"]
        for index in self._rows_of(self.allocations, number):
            self.release(int(index))
        for index in self._rows_of(self.events, number):
            self.events[index]["died"] = self.events[index]["serial"]
            self.events[index]["serial"] = 0
        self.opens[:, number] = False
        row["pid"] = 0

    @staticmethod
    def _rows_of(table: np.ndarray, maker: int) -> np.ndarray:
        return np.flatnonzero((table["serial"] != 0) & (table["maker"] == maker))

    # Allocations

    def reserve(self, nbytes: int, maker: int | None = None) -> int:
        """Find room and return the allocation's row number.

        The maker is this process, or says of virtual memory whether it is exportable.
        Raises OutOfDeviceMemoryError.
        """
        offset = self._first_gap(_footprint(nbytes))
        vacant = np.flatnonzero(~self._counted())
        if offset is None or not len(vacant):
            raise OutOfDeviceMemoryError(
                f"The simulated device cannot allocate {nbytes} bytes: "
                f"{self.free_bytes()} of {len(self.arena)} are free. Drop tensors, "
                "call ipc_collect(), or ask for a larger device with "
                "use_simulated_device(memory=...)."
            )
        row = self.allocations[int(vacant[0])]
        row["maker"] = self.own_process if maker is None else maker
        row["offset"], row["nbytes"] = offset, nbytes
        row["serial"] = self.new_serial()
        return int(vacant[0])

    def _first_gap(self, size: int) -> int | None:
        live = self.allocations[self.allocations["serial"] != 0]
        end = 0
        for row in np.sort(live, order="offset"):
            if row["offset"] - end >= size:
                return end
            end = int(row["offset"]) + _footprint(int(row["nbytes"]))
        return end if len(self.arena) - end >= size else None

    def release(self, index: int) -> None:
        """Poison an allocation and give its room back."""
        row = self.allocations[index]
        start = int(row["offset"])
        self.arena[start : start + _footprint(int(row["nbytes"]))] = POISON
        row["serial"] = 0

    # Virtual memory

    def set_open(self, index: int, is_open: bool) -> None:
        """Note whether this process has an allocation open."""
        self.opens[index, self.own_process] = is_open

    def reference(self, index: int) -> OwnedDescriptor:
        """Return a descriptor that keeps an allocation, wherever it is.

        It is an open file of the device at the position of the row's number, and has
        a lock on the byte there, which the kernel drops with the last duplicate.
        """
        owned = self.file.reopened()
        os.lseek(owned.fd, index, os.SEEK_SET)
        lock_byte(owned.fd, index)
        return owned

    def referred(self, fd: int) -> int:
        """Return the row of the allocation to which a descriptor leads.

        Raises DeviceHandleError.
        """
        index = os.lseek(fd, 0, os.SEEK_CUR) if self.file.is_open_as(fd) else -1
        if index not in np.flatnonzero(self.allocations["maker"] == EXPORTABLE):
            raise DeviceHandleError(
                "This descriptor leads to no memory of the simulated device that this "
                f"process uses. {FIND_IT}"
            )
        return index

    def release_unreferenced(self) -> None:
        """Release the virtual memory that no process and no descriptor has."""
        made = (self.allocations["serial"] != 0) & (self.allocations["maker"] < 0)
        for index in np.flatnonzero(made).tolist():
            if not self.opens[index].any() and not is_locked(self.file.fd, index):
                self.release(index)

    def free_bytes(self) -> int:
        """Return how many bytes are neither allocated nor open after their free."""
        counted = self.allocations["nbytes"][self._counted()].tolist()
        return max(0, len(self.arena) - sum(map(_footprint, counted)))

    def _counted(self) -> np.ndarray:
        """Return for each row whether it is allocated, or still open somewhere."""
        live: np.ndarray = self.allocations["serial"] != 0
        return live | self.opens.any(axis=1)
