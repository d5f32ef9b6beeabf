"""What NVIDIA's driver offers and CuPy's binding of the runtime does not.

The range of an allocation and the UUID of a device: each function is one or two calls
of the API of the driver.
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
