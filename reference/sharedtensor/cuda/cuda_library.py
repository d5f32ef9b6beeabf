"""What NVIDIA's driver offers and CuPy's binding of the runtime does not.

The range of an allocation, the UUID of a device, and contexts that are pushed and
popped: each function is one or two calls of the API of the driver.
"""

from __future__ import annotations

import ctypes
import functools
import uuid
from typing import Any

from .errors import DeviceError


class CudaLibraryError(DeviceError):
    """A call failed."""


@functools.cache
def library() -> Any:
    """Return the library, initialised; raises OSError and CudaLibraryError."""
    loaded = ctypes.CDLL("libcuda.so.1")
    _call(loaded, "cuInit", 0)
    return loaded


def _call(loaded: Any, function: str, *arguments: Any) -> None:
    status = getattr(loaded, function)(*arguments)
    if status:
        raise CudaLibraryError(f"{function} failed with CUDA error {status}")


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
