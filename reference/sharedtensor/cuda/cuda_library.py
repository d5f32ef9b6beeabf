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

DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
READ_AND_WRITE = 3  # CU_MEM_ACCESS_FLAGS_PROT_READWRITE
_PINNED = _DEVICE = 1  # CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE


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
    status = getattr(loaded, function)(*arguments)
    if status:
        error = CudaLibraryError(f"{function} failed with CUDA error {status}")
        error.status = status
        raise error


def address_range(pointer: int) -> tuple[int, int]:
    """Return base and size of the memory in which a pointer of this process lies."""
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    out = (ctypes.byref(base), ctypes.byref(size))
    _call(library(), "cuMemGetAddressRange_v2", *out, ctypes.c_uint64(pointer))
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


# Virtual memory: physical memory has a handle, and is there while it is mapped as well


class _Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


def _properties(index: int, handle_types: int) -> Any:
    location = _Location(_DEVICE, index)
    return ctypes.byref(_Properties(_PINNED, handle_types, location))


def granularity(index: int, handle_types: int) -> int:
    """Return of what the sizes of physical memory on a device are multiples."""
    found = ctypes.c_size_t()
    out = (ctypes.byref(found), _properties(index, handle_types), 0)
    _call(library(), "cuMemGetAllocationGranularity", *out)
    return found.value


def create(index: int, size: int, handle_types: int) -> int:
    """Make physical memory on a device and return its handle."""
    handle = ctypes.c_uint64()
    size_of, flags = ctypes.c_size_t(size), ctypes.c_uint64(0)
    wanted = _properties(index, handle_types)
    _call(library(), "cuMemCreate", ctypes.byref(handle), size_of, wanted, flags)
    return handle.value


def import_descriptor(fd: int) -> int:
    """Return a handle of the physical memory to which a descriptor leads."""
    handle = ctypes.c_uint64()
    out = (ctypes.byref(handle), ctypes.c_void_p(fd), DESCRIPTOR)
    _call(library(), "cuMemImportFromShareableHandle", *out)
    return handle.value


def release(handle: int) -> None:
    """Give back a handle; the memory stays while it is mapped or a descriptor is."""
    _call(library(), "cuMemRelease", ctypes.c_uint64(handle))


def export(address: int) -> int:
    """Return a new descriptor that leads to the memory that is mapped at an address."""
    handle, fd = ctypes.c_uint64(), ctypes.c_int(-1)
    place = ctypes.byref(handle), ctypes.c_void_p(address)
    _call(library(), "cuMemRetainAllocationHandle", *place)
    try:
        what = (ctypes.byref(fd), handle, DESCRIPTOR, ctypes.c_uint64(0))
        _call(library(), "cuMemExportToShareableHandle", *what)
    finally:
        release(handle.value)
    return fd.value


def map_handles(index: int, handles: Sequence[int], sizes: Sequence[int]) -> int:
    """Map physical memory side by side, for a device; return where it begins."""
    base, total = ctypes.c_uint64(), ctypes.c_size_t(sum(sizes))
    zero, flags = ctypes.c_uint64(0), ctypes.c_uint64(0)
    out = (ctypes.byref(base), total, ctypes.c_size_t(0), zero, flags)
    _call(library(), "cuMemAddressReserve", *out)
    mapped: list[int] = []
    try:
        for handle, size in zip(handles, sizes, strict=True):
            at = ctypes.c_uint64(base.value + sum(mapped))
            what = (ctypes.c_size_t(size), ctypes.c_size_t(0), ctypes.c_uint64(handle))
            _call(library(), "cuMemMap", at, *what, flags)
            mapped.append(size)
        access = ctypes.byref(_Access(_Location(_DEVICE, index), READ_AND_WRITE))
        one = ctypes.c_size_t(1)
        _call(library(), "cuMemSetAccess", base, total, access, one)
    except BaseException:
        unmap(base.value, mapped, total.value)
        raise
    return base.value


def unmap(base: int, mapped: Sequence[int], reserved: int) -> None:
    """Unmap what is mapped from a base on, and free the addresses."""
    at = base
    for size in mapped:
        _call(library(), "cuMemUnmap", ctypes.c_uint64(at), ctypes.c_size_t(size))
        at += size
    size_of = ctypes.c_size_t(reserved)
    _call(library(), "cuMemAddressFree", ctypes.c_uint64(base), size_of)
