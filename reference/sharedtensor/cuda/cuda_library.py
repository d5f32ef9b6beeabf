"""What NVIDIA's driver offers and CuPy's binding of the runtime does not.

The range of an allocation, the UUID of a device, contexts that are pushed and popped,
and virtual memory: each function is a few calls of the API of the driver.
"""

from __future__ import annotations

import ctypes
import functools
import uuid
from collections.abc import Sequence
from typing import Any

from .errors import DeviceError

# The values of CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE,
# CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR and CU_MEM_ACCESS_FLAGS_PROT_READWRITE.
PINNED, DEVICE, DESCRIPTOR, READ_AND_WRITE = 1, 1, 1, 3


class CudaLibraryError(DeviceError):
    """A call failed, with this status."""

    status = 0


@functools.cache
def library() -> Any:
    """Return the library, initialised; raises OSError and CudaLibraryError."""
    loaded = ctypes.CDLL("libcuda.so.1")
    _call(loaded, "cuInit", 0)
    return loaded


def _call(loaded: Any, function: str, *arguments: Any) -> None:
    """Call a function; integers go as 64 bits, of which it takes what it needs."""
    words = [ctypes.c_uint64(one) if type(one) is int else one for one in arguments]
    status = getattr(loaded, function)(*words)
    if status:
        error = CudaLibraryError(f"{function} failed with CUDA error {status}")
        error.status = status
        raise error


def address_range(pointer: int) -> tuple[int, int]:
    """Return base and size of the memory in which a pointer of this process lies."""
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    out = (ctypes.byref(base), ctypes.byref(size))
    _call(library(), "cuMemGetAddressRange_v2", *out, pointer)
    return base.value, size.value


def device_identity(index: int) -> str:
    """Return the UUID of a device that this process sees, as nvidia-smi writes it."""
    device, found = ctypes.c_int(), ctypes.create_string_buffer(16)
    _call(library(), "cuDeviceGet", ctypes.byref(device), index)
    _call(library(), "cuDeviceGetUuid_v2", found, device)
    return f"GPU-{uuid.UUID(bytes=found.raw)}"


def primary_context(index: int) -> int:
    """Return the primary context of a device, made if there is none, and keep it."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _call(library(), "cuDeviceGet", ctypes.byref(device), index)
    _call(library(), "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    return context.value or 0


def push_context(context: int) -> None:
    """Make a context the current one of this thread, above the one that is."""
    _call(library(), "cuCtxPushCurrent_v2", ctypes.c_void_p(context))


def pop_context() -> None:
    """Make the context below the current one."""
    _call(library(), "cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


# Virtual memory: it is there while it is mapped, also when its handle was released


def _answer(function: str, *arguments: Any) -> int:
    """Return the number to which the first parameter of a function leads."""
    found = ctypes.c_uint64()
    _call(library(), function, ctypes.byref(found), *arguments)
    return found.value


def _properties(index: int, handle_types: int) -> Any:
    """Return CUmemAllocationProp: type, handle types, location; the rest is 0."""
    return ctypes.byref((ctypes.c_int * 8)(PINNED, handle_types, DEVICE, index))


def granularity(index: int, handle_types: int) -> int:
    """Return of what the sizes of memory on a device are multiples."""
    wanted = _properties(index, handle_types)
    return _answer("cuMemGetAllocationGranularity", wanted, 0)


def create(index: int, handle_types: int, size: int) -> int:
    """Make memory on a device and return its handle."""
    return _answer("cuMemCreate", size, _properties(index, handle_types), 0)


def import_descriptor(fd: int) -> int:
    """Return a handle of the memory to which a descriptor leads."""
    return _answer("cuMemImportFromShareableHandle", fd, DESCRIPTOR)


def release(handle: int) -> None:
    """Give a handle back."""
    _call(library(), "cuMemRelease", handle)


def export(address: int) -> int:
    """Return a new descriptor that leads to the memory that is mapped at an address."""
    handle = _answer("cuMemRetainAllocationHandle", address)
    try:
        return _answer("cuMemExportToShareableHandle", handle, DESCRIPTOR, 0)
    finally:
        release(handle)


def map_handles(index: int, handles: Sequence[int], sizes: Sequence[int]) -> int:
    """Map memory side by side, for its device; return where it begins."""
    total = sum(sizes)
    base = _answer("cuMemAddressReserve", total, 0, 0, 0)
    mapped: list[int] = []
    try:
        for handle, size in zip(handles, sizes, strict=True):
            _call(library(), "cuMemMap", base + sum(mapped), size, 0, handle, 0)
            mapped.append(size)
        access = ctypes.byref((ctypes.c_int * 3)(DEVICE, index, READ_AND_WRITE))
        _call(library(), "cuMemSetAccess", base, total, access, 1)
    except BaseException:
        unmap(base, mapped, total)
        raise
    return base


def unmap(base: int, mapped: Sequence[int], reserved: int) -> None:
    """Unmap what is mapped from a base on, and free the addresses."""
    at = base
    for size in mapped:
        _call(library(), "cuMemUnmap", at, size)
        at += size
    _call(library(), "cuMemAddressFree", base, reserved)
