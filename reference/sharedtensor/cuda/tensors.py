"""Tensors in device memory.

A `CudaTensor` is a storage, an offset in it, and a shape with strides: offset and
strides in bytes, as NumPy has them, where a name says `byte`, and else in elements.
Its data moves by copies between host and device only, which keep the order that the
device gives them: a write may be pending when the call returns; a read comes after the
writes of its own process, but not after those of others, for which one synchronises
there and waits here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..layout import contiguous, is_basic
from . import protocol, virtual
from .devices import device_state
from .driver import Driver
from .errors import DeviceError
from .state import DeviceStorage

Index = Any  # what NumPy calls basic indexing: integers, slices, None, Ellipsis


class CudaTensor:
    """An n-dimensional view of a device storage; made by the functions below."""

    def __init__(
        self,
        storage: DeviceStorage | None,
        byte_offset: int,
        shape: tuple[int, ...],
        byte_strides: tuple[int, ...],
        dtype: np.dtype[Any],
        device: str,
    ) -> None:
        self.storage = storage  # None for a tensor without elements
        self.byte_offset = byte_offset
        self.shape = shape
        self.byte_strides = byte_strides
        self.dtype = dtype
        self.device = device
        self.requires_grad = False
        self._grad: CudaTensor | None = None

    @property
    def grad(self) -> CudaTensor | None:
        """The gradient; it crosses with the tensor. Clause CUDA-31."""
        return self._grad

    @grad.setter
    def grad(self, grad: CudaTensor | None) -> None:
        if grad is not None and grad.shape != self.shape:
            raise DeviceError(
                f"A grad of shape {grad.shape} does not fit a tensor of {self.shape}."
            )
        self._grad = grad

    def requires_grad_(self, flag: bool = True) -> CudaTensor:
        """Set the flag, which crosses with the tensor, and return the tensor."""
        self.requires_grad = flag
        return self

    def data_ptr(self) -> int:
        """Return the address of the first element; 0 if there is none."""
        return self.storage.data_ptr() + self.byte_offset if self.storage else 0

    def is_shared(self) -> bool:
        """Return True: device memory needs no move. Clauses CUDA-5 and CUDA-32."""
        return True

    def share_memory_(self) -> CudaTensor:
        """Return the tensor itself; there is nothing to do. Clause CUDA-32."""
        return self

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("A tensor without dimensions has no length.")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"CudaTensor(shape={self.shape}, {self.dtype}, device={self.device!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> CudaTensor:
        """Return a tensor in an allocation that the copies of its aliases share."""
        made = memo[id(self)] = copy.copy(self)  # before its grad, which may be it
        if self.storage is not None and id(self.storage) not in memo:
            copied = self.storage.state.use(protocol.duplicate, self.storage)
            memo[id(self.storage)] = copied
        vars(made).update(copy.deepcopy(vars(self), memo))
        return made

    # Views

    def __getitem__(self, index: Index) -> CudaTensor:
        """Return a view; only basic indexing can be one."""
        parts = index if isinstance(index, tuple) else (index,)
        if not all(is_basic(part) for part in parts):
            raise TypeError(
                "A device tensor is indexed by integers, slices, None and Ellipsis; "
                "anything else would need a copy: index the array that .cpu() returns."
            )
        # NumPy does the arithmetic on a layout whose elements are never read.
        layout = _layout(self.shape, self.byte_strides, self.dtype)
        if Ellipsis not in parts:
            parts = (*parts, Ellipsis)
        view = layout[parts]
        moved = _address(view) - _address(layout) if view.size else 0
        return CudaTensor(
            self.storage, self.byte_offset + moved, view.shape, view.strides,
            self.dtype, self.device,
        )  # fmt: skip

    def stride(self) -> tuple[int, ...]:
        """Return the strides in elements."""
        return tuple(stride // self.dtype.itemsize for stride in self.byte_strides)

    def storage_offset(self) -> int:
        """Return the offset in elements, a fraction of one left out."""
        return self.byte_offset // self.dtype.itemsize

    def as_strided(
        self, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
    ) -> CudaTensor:
        """Return a view of the storage; strides and offset are in elements.

        Clause CUDA-7. Raises DeviceError if it does not lie within the storage.
        """
        size = self.dtype.itemsize
        start = self.byte_offset % size + offset * size
        byte_strides = tuple(stride * size for stride in strides)
        ends = [(n - 1) * step for n, step in zip(shape, byte_strides, strict=True)]
        low = start + sum(end for end in ends if end < 0)
        high = start + sum(end for end in ends if end > 0) + size
        room = self.storage.nbytes if self.storage else 0
        if 0 not in shape and not 0 <= low < high <= room:
            raise DeviceError(
                f"A view of shape {shape} at offset {offset} does not lie within the "
                f"{room} bytes of the storage."
            )
        return CudaTensor(
            self.storage, start, shape, byte_strides, self.dtype, self.device
        )

    def resize_(self, count: int) -> CudaTensor:
        """Give the tensor one dimension of `count` elements, in the memory it has.

        Clause CUDA-23. Raises DeviceError if the storage is too small: it cannot
        grow, since other processes may have it open as it is.
        """
        room = self.storage.nbytes - self.byte_offset if self.storage else 0
        if count * self.dtype.itemsize > room:
            raise DeviceError(
                f"A device tensor cannot be resized to {count} elements: its storage "
                f"ends {room} bytes behind its begin and cannot grow. Make a new "
                "tensor and send that."
            )
        self.shape, self.byte_strides = (count,), (self.dtype.itemsize,)
        return self

    # Data

    def write(self, index: Index, value: npt.ArrayLike) -> None:
        """Write elements, asynchronously; a scalar or array of fitting shape."""
        view = self[index]
        data = np.empty(view.shape, self.dtype)
        data[...] = value
        if view.storage is None:
            return
        state = view.storage.state
        state.use(view._copy_from, state.driver, data.reshape(-1))

    def _copy_from(self, driver: Driver, flat: np.ndarray) -> None:
        done = 0
        for pointer, count in self._runs():
            part = flat[done : done + count].tobytes()
            driver.copy_to_device(pointer, part)
            done += count

    def read(self, index: Index) -> Any:
        """Return one element, or an array of several, after one's own writes.

        Writes of another process are there once it has synchronised, or once an
        event of it that covers them has been waited for, as a receive does.
        """
        data = self[index].cpu()
        return data.item() if data.ndim == 0 else data

    def cpu(self) -> np.ndarray:
        """Return a copy as a NumPy array; the own earlier work is done first."""
        if self.storage is None:
            return np.empty(self.shape, self.dtype)
        state = self.storage.state
        parts = state.use(self._copies, state.driver)
        data = np.frombuffer(bytearray().join(parts), self.dtype)
        return data.reshape(self.shape)

    def _copies(self, driver: Driver) -> list[bytes]:
        size = self.dtype.itemsize
        return [driver.copy_to_host(at, count * size) for at, count in self._runs()]

    def tolist(self) -> Any:
        """Return the elements as Python numbers in nested lists."""
        return self.cpu().tolist()

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Yield address and number of elements of each contiguous run, in order."""
        layout = _layout(self.shape, self.byte_strides, self.dtype)
        run, outer = 1, len(self.shape)
        while outer and (
            self.shape[outer - 1] == 1
            or self.byte_strides[outer - 1] == run * self.dtype.itemsize
        ):
            outer -= 1
            run *= self.shape[outer]
        start = self.data_ptr() - _address(layout)
        for index in np.ndindex(self.shape[:outer]):
            yield start + _address(layout[(*index, Ellipsis)]), run


def _layout(
    shape: tuple[int, ...], byte_strides: tuple[int, ...], dtype: np.dtype[Any]
) -> np.ndarray:
    anything = np.empty(1, dtype)
    return np.lib.stride_tricks.as_strided(anything, shape, byte_strides)


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def tensor(
    data: npt.ArrayLike, dtype: npt.DTypeLike | None = None, device: str | None = None
) -> CudaTensor:
    """Copy data to a device; `sim:0` is the simulated one.

    Raises DeviceUnavailableError; OutOfDeviceMemoryError; ForkError.
    """
    array = np.asarray(data, dtype)
    if array.dtype.hasobject:
        raise DeviceError("Python objects cannot lie in device memory, only numbers.")
    if not array.size:
        made = carve(None, 0, array.shape, array.dtype, device)
    else:
        made = carve(empty_block(array.nbytes, device), 0, array.shape, array.dtype)
    made.write(Ellipsis, array)
    return made


def empty_block(nbytes: int, device: str | None = None) -> DeviceStorage:
    """Allocate memory in which several tensors can lie, see `carve`.

    Raises DeviceUnavailableError; OutOfDeviceMemoryError; ForkError.
    """
    return protocol.allocate(device_state(device), nbytes)


def virtual_block(
    *sizes: int, device: str | None = None, is_exportable: bool = True
) -> DeviceStorage:
    """Map physical memory of these sizes side by side, see `carve`. Clause CUDA-39.

    The sizes are rounded up to what the device takes. What is not exportable cannot be
    sent. Raises what `empty_block` raises.
    """
    state = device_state(device)
    return state.use(virtual.allocate, state, sizes, is_exportable)


def carve(
    storage: DeviceStorage | None,
    byte_offset: int,
    shape: tuple[int, ...],
    dtype: npt.DTypeLike,
    device: str | None = None,
) -> CudaTensor:
    """Return a contiguous tensor at an offset of a storage. Clause CUDA-2.

    A tensor without elements needs no storage, but then a device.

    Raises DeviceError if it does not fit.
    """
    kind, sizes = np.dtype(dtype), tuple(shape)
    byte_strides = tuple(step * kind.itemsize for step in contiguous(sizes))
    nbytes = math.prod(sizes) * kind.itemsize
    if storage is None:
        if nbytes:
            raise DeviceError("A tensor with elements needs a storage.")
        device = device_state(device).driver.name
        return CudaTensor(None, 0, sizes, byte_strides, kind, device)
    if byte_offset < 0 or byte_offset + nbytes > storage.nbytes:
        raise DeviceError(
            f"{nbytes} bytes at offset {byte_offset} do not lie within a storage of "
            f"{storage.nbytes} bytes."
        )
    device = storage.state.driver.name
    return CudaTensor(storage, byte_offset, sizes, byte_strides, kind, device)
