"""Tensors over the memory of CuPy arrays, and arrays over that of tensors.

CuPy carves its arrays from blocks that it keeps, so an array is a place in a block and
the handle that crosses names the block. Sharing one array lets the receiver open the
whole block, and keeps the arrays that were made into tensors until nobody refers to it.
The driver carves small blocks of CuPy's in turn, so a receiver can also reach what lies
within the same 2 MiB: copy what is confidential, or what is sent to somebody who is not
trusted, into an array of at least that size.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from . import protocol
from .cupy_driver import CupyDriver
from .devices import device_state
from .errors import DeviceError
from .state import DeviceState, DeviceStorage
from .tensors import CudaTensor


def from_cupy(array: Any) -> CudaTensor:
    """Return a tensor over the memory of a CuPy array. Clause CUDA-2.

    Raises DeviceHandleError for managed memory and for memory of an asynchronous pool,
    which cannot be shared; DeviceUnavailableError; ForkError.
    """
    state = device_state(f"cuda:{array.device.id}")
    storage, byte_offset = state.use(_place_of, state, array)
    shape, byte_strides = tuple(array.shape), tuple(array.strides)
    return CudaTensor(
        storage, byte_offset, shape, byte_strides, array.dtype, state.driver.name
    )


def _place_of(state: DeviceState, array: Any) -> tuple[DeviceStorage | None, int]:
    """Return the storage of an array, and where in it the array begins."""
    driver = state.driver
    assert isinstance(driver, CupyDriver), "a cuda device has this driver"
    if not array.size:
        return None, 0
    pointer = int(array.data.ptr)
    allocation = protocol.find_around(state, pointer)
    if allocation is None:
        storage = protocol.adopt(state, *driver.adopt(array))
    else:
        driver.keep(allocation.base, array)
        storage = protocol.refer_to(state, allocation)
    return storage, pointer - storage.data_ptr()


def to_cupy(tensor: CudaTensor) -> Any:
    """Return a CuPy array over the memory of a tensor; it keeps the tensor's storage.

    Raises DeviceError for a tensor on the simulated device.
    """
    if not tensor.device.startswith("cuda:"):
        raise DeviceError(
            f"A tensor on {tensor.device} has no memory that CuPy could use; read it "
            "with .cpu()."
        )
    cupy = import_module("cupy")
    index = int(tensor.device.removeprefix("cuda:"))
    driver = device_state(tensor.device).driver
    assert isinstance(driver, CupyDriver), "a cuda device has this driver"
    with driver.current():  # CuPy's own way makes a context on the device before, too
        if tensor.storage is None:
            return cupy.empty(tensor.shape, tensor.dtype)
        start, size = tensor.storage.data_ptr(), tensor.storage.nbytes
        owner = tensor.storage
        memory = cupy.cuda.UnownedMemory(start, size, owner, index)
        place = cupy.cuda.MemoryPointer(memory, tensor.byte_offset)
        return cupy.ndarray(tensor.shape, tensor.dtype, place, tensor.byte_strides)
