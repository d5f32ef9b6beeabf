"""The narrow interface between the protocol and a device.

Everything that the protocol of sharing needs from a device is here and nothing
else, so that one protocol runs over the simulated device and over a real one.
There is one queue of work (a stream) per process, the default stream; a program
that wants several can record an event of its own before it sends.

There is no `event_query`: a device without threads makes progress only when
somebody waits, so a loop around a query would never end.

Names in brackets are rules of `docs/guides/cuda-protocol.md`, which has for each its
statement, its basis (`documented`, `observed`, `assumed`) and the source.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence

from ..descriptors import OwnedDescriptor
from .errors import DeviceHandleError, ForkError


def not_exportable(base: int, why: str = "") -> DeviceHandleError:
    """Return the error of an export of virtual memory that its maker did not prepare.

    Clause CUDA-42.
    """
    return DeviceHandleError(
        f"The virtual memory at {base:#x} cannot be sent: it was made without a type "
        f"of handle that processes can share{why}. Make it exportable, or send a copy."
    )


class Driver(ABC):
    """One device as one process sees it.

    The caller sees to it that only one thread at a time is inside a driver.
    Every method raises ForkError in a forked child [no-fork, observed].

    Attributes:
        name: the device as users write it: `sim:0`, `cuda:1`. A simulated device says
            so in its name [device-index, documented].
        identity: what names the device in every process: for a real one, its UUID. A
            name like `cuda:1` is that of another device where others are visible.
    """

    def __init__(self, name: str, identity: str) -> None:
        self.name = name
        self.identity = identity
        self._pid = os.getpid()

    def forked(self) -> bool:
        """Return whether this is a child forked from the process that uses it.

        Clause CUDA-1. Never raises.
        """
        return os.getpid() != self._pid

    def refuse_fork(self) -> None:
        """Raise ForkError in a child forked from the process that uses it.

        Clause CUDA-1.
        """
        if self.forked():
            raise ForkError(
                f"The device {self.name} was used before this process was forked and "
                "cannot be used in it; start processes with the method 'spawn' or "
                "'forkserver'."
            )

    @abstractmethod
    def allocate(self, nbytes: int) -> int:
        """Allocate device memory and return its base pointer.

        Raises OutOfDeviceMemoryError [memory-is-finite, documented]. The memory
        is not cleared [uninitialised, documented] and aligned to 256 bytes
        [alignment, documented].
        """

    @abstractmethod
    def free(self, base: int) -> None:
        """Free an own allocation [free-once, documented].

        The caller makes sure that nobody has it open [free-while-open,
        documented] and that no work on it is pending.
        """

    @abstractmethod
    def allocation_of(self, pointer: int) -> tuple[int, int]:
        """Return base and size of the allocation in which a pointer lies.

        As cuMemGetAddressRange does (Driver API, documented). Raises
        IllegalAddressError [no-stray-access, documented].
        """

    @abstractmethod
    def ipc_handle(self, pointer: int) -> bytes:
        """Return the 64-byte handle of an own allocation.

        It names the whole allocation, wherever in it the pointer points
        [whole-allocation, documented], and no other one ever after
        [unique-handle, documented].
        """

    @abstractmethod
    def open_handle(self, handle: bytes) -> int:
        """Map an allocation of another process and return its base here.

        A second open returns the same pointer [open-counts, documented], which
        is valid in this process only [pointer-is-local, documented]. Raises
        DeviceHandleError in the exporting process [not-in-exporter, assumed], for
        an allocation that is gone [exporter-outlives, assumed], and for one of
        another device [handle-has-a-device, assumed].
        """

    @abstractmethod
    def close_handle(self, base: int) -> None:
        """Undo one open [open-counts, close-leaves-the-rest, documented]."""

    @abstractmethod
    def map_new(
        self, sizes: Sequence[int], is_exportable: bool
    ) -> tuple[int, list[int]]:
        """Make physical memory, map it side by side; return base and rounded sizes.

        It is freed when no process maps it and no descriptor leads to it
        [references-keep, documented]. Raises OutOfDeviceMemoryError.
        """

    @abstractmethod
    def export_mapped(self, base: int) -> list[OwnedDescriptor]:
        """Return a new descriptor for each piece that is mapped from a base on.

        What was received can be exported as well [importer-exports, assumed]. Raises
        DeviceHandleError for what is not exportable [handle-type, documented].
        """

    @abstractmethod
    def map_received(self, descriptors: Sequence[int], sizes: Sequence[int]) -> int:
        """Map physical memory of other processes side by side and return the base.

        It stays when the descriptors are closed [references-keep, documented]. Raises
        DeviceHandleError.
        """

    @abstractmethod
    def unmap(self, base: int) -> None:
        """Unmap the pieces that are mapped from a base on; it waits for nothing."""

    @abstractmethod
    def copy_to_device(self, pointer: int, data: bytes) -> None:
        """Queue a copy to the device [copy-to-device-is-pending, documented]."""

    @abstractmethod
    def copy_to_host(self, pointer: int, nbytes: int) -> bytes:
        """Copy from the device once the own earlier work is done.

        [copy-to-host-completes, others-work-is-invisible, documented]
        """

    @abstractmethod
    def synchronize(self) -> None:
        """Complete all work of this process [synchronize-completes, documented]."""

    @abstractmethod
    def event_create(self) -> int:
        """Make an event that other processes can open, without timing."""

    @abstractmethod
    def event_destroy(self, event: int) -> None:
        """Give up an event, own or opened.

        An own one becomes unusable everywhere [event-dies-with-its-exporter,
        documented].
        """

    @abstractmethod
    def event_record(self, event: int) -> None:
        """Let the event stand for all work queued so far by this process.

        [record-captures, either-side-records, documented]
        """

    @abstractmethod
    def event_handle(self, event: int) -> bytes:
        """Return the 64-byte handle of an own event."""

    @abstractmethod
    def event_open(self, handle: bytes) -> int:
        """Open an event of another process.

        Raises DeviceHandleError [event-dies-with-its-exporter, documented].
        """

    @abstractmethod
    def event_wait(self, event: int) -> None:
        """Let the later work of this process come after the event.

        The host does not wait [wait-orders-what-follows, documented].
        """

    @abstractmethod
    def event_synchronize(self, event: int) -> None:
        """Let the host wait for the event (cudaEventSynchronize, documented)."""

    @abstractmethod
    def memory_info(self) -> tuple[int, int]:
        """Return free and total bytes [memory-is-finite, documented].

        What is open counts as used [open-memory-counts, assumed].
        """

    @abstractmethod
    def close(self) -> None:
        """End this process's use of the device; never raises.

        What it allocated goes with the process [exporter-outlives, assumed], what it
        had pending is dropped [exit-drops-pending-work, assumed].
        """
