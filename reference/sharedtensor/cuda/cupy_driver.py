"""A real CUDA device, reached through CuPy.

The `Driver` over CUDA's runtime. CuPy is the way to it because it brings the runtime's
functions to Python and comes with the arrays that programs have; nothing imports it
before a program asks for a device named `cuda`.

CUDA may put several allocations in one block and shares the block, so the memory of
this driver comes in whole blocks of 2 MiB, as the Programming Guide recommends for
memory that is shared. The memory of a CuPy array lies in a block of CuPy's pool with
others; `adopt` finds the block and keeps the array alive.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from ..descriptors import OwnedDescriptor
from . import cuda_library
from .driver import Driver, not_exportable
from .errors import (
    DeviceError,
    DeviceHandleError,
    DeviceUnavailableError,
    IllegalAddressError,
    OutOfDeviceMemoryError,
)

BLOCK = 2 << 20
HANDLE_BYTES = 64
DEFAULT_STREAM = 0
MAY_NOT_SHARE = (
    "is this one, or may not share with it (containers need the same IPC and PID "
    "namespaces)"
)
_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation
_NO_DEVICE = 100  # cudaErrorNoDevice
_FORKED = (
    "CUDA was used before this process was forked and cannot be used in it; start "
    "processes with the method 'spawn' or 'forkserver'."
)
_first_user: int | None = None  # the process in which CUDA was first used


@functools.cache
def _runtime() -> ModuleType:
    """Return CuPy's binding of the runtime; raises DeviceUnavailableError."""
    global _first_user
    try:
        runtime: ModuleType = import_module("cupy.cuda").runtime
    except ImportError as error:
        if error.name in ("cupy", "cupy.cuda"):
            raise DeviceUnavailableError(
                "CuPy is not installed; install shared-tensor-spec[cuda13] for a "
                "driver of CUDA 13, or shared-tensor-spec[cuda12] for one of CUDA 12."
            ) from None
        said = " ".join(str(error).split())
        raise DeviceUnavailableError(f"CuPy cannot be imported: {said}") from error
    _first_user = os.getpid()
    return runtime


def _current_stream(index: int) -> int:
    """Return the stream of a device that is current in CuPy, in this thread."""
    return int(import_module("cupy.cuda").get_current_stream(index).ptr)


def unavailable_reason() -> str | None:
    """Return in one sentence why no CUDA device can be used; None if one can."""
    try:
        runtime = _runtime()
    except DeviceUnavailableError as error:
        return str(error)
    if _forked():
        return _FORKED
    if not runtime.driverGetVersion():
        return "CuPy finds no NVIDIA driver; install one, or run where there is one."
    try:
        if runtime.getDeviceCount():
            return None
    except runtime.CUDARuntimeError as error:
        if error.status != _NO_DEVICE:
            return f"The CUDA runtime cannot be used here ({error})."
    return "The NVIDIA driver shows this process no GPU; see CUDA_VISIBLE_DEVICES."


def _forked() -> bool:
    return _first_user not in (None, os.getpid())


def device_count() -> int:
    """Return how many CUDA devices this process sees."""
    return 0 if unavailable_reason() else int(_runtime().getDeviceCount())


@functools.cache
def index_of(identity: str) -> int:
    """Return the index that a device has in this process. It is looked for once.

    Raises DeviceUnavailableError if there is none or this process does not see it.
    """
    if why := unavailable_reason():
        raise DeviceUnavailableError(f"The device {identity} cannot be used. {why}")
    for index in range(device_count()):
        if cuda_library.device_identity(index) == identity:
            return index
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    raise DeviceUnavailableError(
        f"The device {identity}, on which a tensor or an event was sent, is none of "
        f"those that this process sees (CUDA_VISIBLE_DEVICES is {visible!r}); let "
        "sender and receiver see it."
    )


os.register_at_fork(after_in_child=index_of.cache_clear)


class _CurrentContext:
    """Makes the primary context of a device current, and then the one before.

    It is pushed and popped. To choose the device that was current before would make a
    context on it, if the program has none there: hundreds of MiB, or an error.

    What the runtime raises is raised as an error of this library. A generator that does
    so leaves, from Python 3.12 on, a cycle that keeps what the caller had in its hands.
    """

    __slots__ = ("context", "name", "refusal", "runtime")

    def __init__(self, name: str, runtime: Any, context: int, refusal: str) -> None:
        self.name, self.runtime, self.context = name, runtime, context
        self.refusal = refusal

    def __enter__(self) -> None:
        cuda_library.push_context(self.context)

    def __exit__(
        self, kind: object, error: BaseException | None, trace: object
    ) -> None:
        cuda_library.pop_context()
        if error is not None and isinstance(error, self.runtime.CUDARuntimeError):
            raise self.translated(error) from error

    def translated(self, error: BaseException) -> DeviceError:
        """Return the error of this library for one of the runtime."""
        if self.refusal:
            return DeviceHandleError(f"{self.refusal} ({error}).")
        return DeviceError(
            f"The device {self.name} reported {error}; if other calls fail in the "
            "same way from now on, end this process and start anew."
        )


class CupyDriver(Driver):
    """A `Driver` over one CUDA device; see there for what each method does.

    Work is queued on the default stream. A program may queue its own on another, which
    need not be ordered with that: an event is recorded behind the work of both, the
    default stream and the one that is current in CuPy, and both wait for one.
    """

    def __init__(self, index: int) -> None:
        super().__init__(f"cuda:{index}", cuda_library.device_identity(index))
        self._index = index
        self._context = cuda_library.primary_context(index)
        self._runtime = _runtime()
        self._own: dict[int, int] = {}  # base to the bytes asked for
        self._adopted: dict[int, list[Any]] = {}  # base to the arrays kept alive
        self._opened: dict[int, int] = {}  # base to the number of opens
        self._virtual: dict[int, list[int]] = {}  # base to the sizes of its pieces
        self._events: set[int] = set()
        with self.current():
            self._runtime.memGetInfo()  # the first call sets the device up

    def current(self, refusal: str = "") -> _CurrentContext:
        """Return a context manager within which the device is the current one.

        A `refusal` says what the runtime refuses when it raises within: a handle.
        """
        self.refuse_fork()
        return _CurrentContext(self.name, self._runtime, self._context, refusal)

    # Memory

    def allocate(self, nbytes: int) -> int:
        if nbytes <= 0:
            raise DeviceError(f"An allocation needs at least 1 byte, not {nbytes}.")
        with self.current():
            try:
                base = int(self._runtime.malloc(-(-nbytes // BLOCK) * BLOCK))
            except self._runtime.CUDARuntimeError as error:
                if error.status != _OUT_OF_MEMORY:
                    raise
                raise self._no_room(nbytes) from error
        self._own[base] = nbytes
        return base

    def _no_room(self, nbytes: int) -> OutOfDeviceMemoryError:
        return OutOfDeviceMemoryError(
            f"The device {self.name} has no room for {nbytes} bytes; drop tensors, "
            "also where they were received, and call ipc_collect()."
        )

    def free(self, base: int) -> None:
        with self.current():
            if self._adopted.pop(base, None) is not None:
                return
            if base not in self._own:
                raise IllegalAddressError(
                    f"{base:#x} is not the base of an allocation of this process: it "
                    "was freed before, lies inside one, or was opened from a handle "
                    "(close that instead)."
                )
            del self._own[base]
            self._runtime.free(base)

    def adopt(self, array: Any) -> tuple[int, int]:
        """Return base and size of the block of a CuPy array, and keep it until `free`.

        Raises DeviceHandleError if the memory cannot be shared.
        """
        base, nbytes = self.allocation_of(int(array.data.ptr))
        if base not in self._own and base not in self._opened:
            self.ipc_handle(base)
            self._adopted[base] = [array]
        return base, nbytes

    def keep(self, base: int, array: Any) -> None:
        """Keep one more array of an adopted block until `free`."""
        if base in self._adopted:
            self._adopted[base].append(array)

    def allocation_of(self, pointer: int) -> tuple[int, int]:
        with self.current():
            return self._range(pointer)

    def _range(self, pointer: int) -> tuple[int, int]:
        for base, sizes in self._virtual.items():
            if 0 <= pointer - base < sum(sizes):
                return base, sum(sizes)
        try:
            return cuda_library.address_range(pointer)
        except cuda_library.CudaLibraryError as error:
            raise IllegalAddressError(
                f"{pointer:#x} lies in no allocation that this process made or has "
                f"open on {self.name} ({error})."
            ) from None

    def _check(self, pointer: int, nbytes: int) -> None:
        base, size = self._range(pointer)
        if pointer + nbytes > base + size:
            raise IllegalAddressError(
                f"The {nbytes} bytes at {pointer:#x} go beyond the end of their "
                "allocation."
            )

    def memory_info(self) -> tuple[int, int]:
        with self.current():
            free, total = self._runtime.memGetInfo()
            return int(free), int(total)

    # Handles

    def ipc_handle(self, pointer: int) -> bytes:
        refusal = (
            f"The memory at {pointer:#x} cannot be shared with other processes: it is "
            "managed memory or comes from an asynchronous pool, or another library "
            "mapped it. Copy it to memory of cudaMalloc, which is CuPy's default pool"
        )
        with self.current(refusal):
            base, _ = self._range(pointer)
            if base in self._opened:
                raise DeviceHandleError(
                    f"The allocation at {base:#x} belongs to another process; only "
                    "that one can export it."
                )
            return bytes(self._runtime.ipcGetMemHandle(base))

    def open_handle(self, handle: bytes) -> int:
        self._check_handle(handle)
        refusal = (
            "The handle of device memory cannot be opened here: its process has ended "
            f"or freed the memory, {MAY_NOT_SHARE}"
        )
        with self.current(refusal):
            base = int(self._runtime.ipcOpenMemHandle(handle))
        self._opened[base] = self._opened.get(base, 0) + 1
        return base

    def close_handle(self, base: int) -> None:
        if base not in self._opened:
            raise DeviceHandleError(
                f"{base:#x} is not the base of an allocation opened from a handle, or "
                "was closed as often as it was opened."
            )
        with self.current():
            self._opened[base] -= 1
            if not self._opened[base]:
                del self._opened[base]
            self._runtime.ipcCloseMemHandle(base)

    def _check_handle(self, handle: bytes) -> None:
        if len(handle) != HANDLE_BYTES:
            raise DeviceHandleError(
                f"A handle of CUDA has {HANDLE_BYTES} bytes and this one {len(handle)}."
            )

    # Virtual memory

    def map_new(
        self, sizes: Sequence[int], is_exportable: bool
    ) -> tuple[int, list[int]]:
        kind = cuda_library.DESCRIPTOR if is_exportable else 0
        make = functools.partial(cuda_library.create, self._index, kind)
        with self.current():
            try:
                unit = cuda_library.granularity(self._index, kind)
                pieces = [-(-size // unit) * unit for size in sizes]
                return self._map(make, pieces, pieces), pieces
            except cuda_library.CudaLibraryError as error:
                if error.status == _OUT_OF_MEMORY:
                    raise self._no_room(sum(sizes)) from error
                raise DeviceError(
                    f"The device {self.name} makes no such virtual memory ({error}): "
                    "it may have none, or none that processes can share."
                ) from error

    def _map(
        self, get: Callable[[int], int], what: Sequence[int], sizes: Sequence[int]
    ) -> int:
        """Map the memory of handles, which go then: it stays while it is mapped."""
        handles: list[int] = []
        try:
            for each in what:
                handles.append(get(each))
            base = cuda_library.map_handles(self._index, handles, sizes)
        finally:
            for handle in handles:
                cuda_library.release(handle)
        self._virtual[base] = [*sizes]
        return base

    def export_mapped(self, base: int) -> list[OwnedDescriptor]:
        # An interruption between the driver's call and its owner loses a descriptor.
        at, exported = base, []
        with self.current():
            for size in self._virtual[base]:
                try:
                    owned = OwnedDescriptor.opened_by(cuda_library.export, at)
                except cuda_library.CudaLibraryError as error:
                    raise not_exportable(base, f" ({error})") from error
                os.set_inheritable(owned.fd, False)
                exported.append(owned)
                at += size
        return exported

    def map_received(self, descriptors: Sequence[int], sizes: Sequence[int]) -> int:
        with self.current():
            try:
                return self._map(cuda_library.import_descriptor, descriptors, sizes)
            except cuda_library.CudaLibraryError as error:
                raise DeviceHandleError(
                    "The virtual memory of another process cannot be mapped here "
                    f"({error})."
                ) from error

    def unmap(self, base: int) -> None:
        with self.current():
            sizes = self._virtual.pop(base)
            cuda_library.unmap(base, sizes, sum(sizes))

    # Work

    def copy_to_device(self, pointer: int, data: bytes) -> None:
        """Copy to the device; see `Driver.copy_to_device`.

        The copy has taken the data when the call returns, so that `data` may go.
        """
        with self.current():
            self._check(pointer, len(data))
            source = np.frombuffer(data, np.uint8).ctypes.data
            kind = self._runtime.memcpyHostToDevice
            self._runtime.memcpy(pointer, source, len(data), kind)

    def copy_to_host(self, pointer: int, nbytes: int) -> bytes:
        with self.current():
            self._check(pointer, nbytes)
            data = np.empty(nbytes, np.uint8)
            kind = self._runtime.memcpyDeviceToHost
            self._runtime.memcpy(data.ctypes.data, pointer, nbytes, kind)
            return data.tobytes()

    def synchronize(self) -> None:
        with self.current():
            self._runtime.deviceSynchronize()

    # Events

    def event_create(self) -> int:
        flags = self._runtime.eventDisableTiming | self._runtime.eventInterprocess
        with self.current():
            event = int(self._runtime.eventCreateWithFlags(flags))
        self._events.add(event)
        return event

    def event_destroy(self, event: int) -> None:
        with self._event(event):
            self._events.remove(event)
            self._runtime.eventDestroy(event)

    def _event(self, event: int) -> _CurrentContext:
        if event not in self._events:
            raise DeviceHandleError(
                f"This process has no event {event:#x}, or destroyed it."
            )
        return self.current()

    def event_record(self, event: int) -> None:
        with self._event(event):
            stream = _current_stream(self._index)
            if stream != DEFAULT_STREAM:
                self._order_after_default(stream)
            self._runtime.eventRecord(event, stream)

    def _order_after_default(self, stream: int) -> None:
        """Let the later work of a stream come after that of the default stream."""
        flags = self._runtime.eventDisableTiming
        between = self._runtime.eventCreateWithFlags(flags)
        self._runtime.eventRecord(between, DEFAULT_STREAM)
        self._runtime.streamWaitEvent(stream, between)
        self._runtime.eventDestroy(between)

    def event_handle(self, event: int) -> bytes:
        with self._event(event):
            return bytes(self._runtime.ipcGetEventHandle(event))

    def event_open(self, handle: bytes) -> int:
        self._check_handle(handle)
        refusal = (
            "The handle of an event cannot be opened here: the process that made it "
            f"has ended or destroyed it, {MAY_NOT_SHARE}"
        )
        with self.current(refusal):
            event = int(self._runtime.ipcOpenEventHandle(handle))
        self._events.add(event)
        return event

    def event_wait(self, event: int) -> None:
        with self._event(event):
            for stream in {DEFAULT_STREAM, _current_stream(self._index)}:
                self._runtime.streamWaitEvent(stream, event)

    def event_synchronize(self, event: int) -> None:
        with self._event(event):
            self._runtime.eventSynchronize(event)

    # The end

    def close(self) -> None:
        """Close what is open; see `Driver.close`.

        What is own stays for the end of the process: others may have it open, or wait
        for it, and to free or destroy it under them is undefined.
        """
        if self.forked():
            return
        for base, opens in list(self._opened.items()):
            for _ in range(opens):
                # At the end of the interpreter the runtime may be gone.
                with contextlib.suppress(DeviceError):
                    self.close_handle(base)
