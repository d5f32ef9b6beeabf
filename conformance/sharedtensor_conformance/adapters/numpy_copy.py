"""A control: NumPy arrays, which every channel copies.

It shares nothing. A run of the suite on it shows that clauses about sharing fail
without sharing, and that clauses about values require only the right values. Plain
arrays lose their strides when they are pickled, which would be a wrong value; the
arrays here keep them.
"""

from __future__ import annotations

import ctypes
import multiprocessing
from typing import Any

import numpy as np

from sharedtensor_conformance.adapter import (
    NUMPY_DTYPES,
    Implementation,
    Index,
    Layout,
    Number,
)

conformance_adapter = Implementation(
    name="numpy-copy",
    operations="sharedtensor_conformance.adapters.numpy_copy:NumpyCopyOperations",
    claims=frozenset({"core", "views", "identity"}),
    version="distribution:numpy",
    dtypes=NUMPY_DTYPES,
    negative_strides=True,
    preload=True,
)


class StridedArray(np.ndarray[Any, Any]):
    """An array that is pickled with the bytes it spans, and so with its strides."""

    def __reduce__(self) -> tuple[Any, ...]:
        lowest, size = span(self.shape, self.strides, self.itemsize)
        data = ctypes.string_at(self.ctypes.data + lowest, size)
        return over, (data, self.shape, self.dtype, -lowest, self.strides)


def span(shape: Index, strides: Index, itemsize: int) -> tuple[int, int]:
    """Return where the lowest byte lies, counted from the first, and how many."""
    if 0 in shape:
        return 0, 0
    steps = [(n - 1) * stride for n, stride in zip(shape, strides, strict=True)]
    lowest = sum(step for step in steps if step < 0)
    return lowest, sum(step for step in steps if step > 0) - lowest + itemsize


def over(
    data: bytes, shape: Index, dtype: np.dtype[Any], offset: int, strides: Index
) -> StridedArray:
    """Return the array over a private copy of `data`."""
    return StridedArray(shape, dtype, bytearray(data), offset, strides)


class NumpyCopyOperations:
    """The operations on arrays that are copied."""

    multiprocessing = multiprocessing

    def enter_child(self, strategy: str) -> None:
        """Do nothing: there is no strategy."""

    def make(self, values: list[Number], shape: Index, dtype: str) -> StridedArray:
        """Return a new array."""
        return np.array(values, dtype).reshape(shape).view(StridedArray)

    def is_tensor(self, value: object) -> bool:
        """Return whether `value` is an array."""
        return isinstance(value, StridedArray)

    def shape(self, tensor: StridedArray) -> Index:
        """Return the shape."""
        return tuple(tensor.shape)

    def dtype(self, tensor: StridedArray) -> str:
        """Return the dtype."""
        return str(tensor.dtype)

    def values(self, tensor: StridedArray) -> list[Number]:
        """Return all values, flat."""
        values: list[Number] = tensor.ravel().tolist()
        return values

    def read(self, tensor: StridedArray, index: Index) -> Number:
        """Return the value of one element."""
        value: Number = tensor[index].item()
        return value

    def write(self, tensor: StridedArray, index: Index, value: Number) -> None:
        """Write one element."""
        tensor[index] = value

    def encode(self, tensor: StridedArray) -> object:
        """Return the array: pickle copies it."""
        return tensor

    def decode(self, message: object) -> StridedArray:
        """Return the message: it is an array."""
        assert isinstance(message, StridedArray)
        return message

    def release(self, tensor: StridedArray) -> None:
        """Do nothing: the last reference frees the array."""

    def address(self, tensor: StridedArray) -> int:
        """Return the address of the first element."""
        return tensor.ctypes.data

    def view(self, tensor: StridedArray, layout: Layout) -> StridedArray:
        """Return the window over the array's bytes."""
        size = tensor.itemsize
        strides = tuple(stride * size for stride in layout.strides)
        offset = layout.offset * size
        return StridedArray(layout.shape, tensor.dtype, tensor.data, offset, strides)

    def strides(self, tensor: StridedArray) -> Index:
        """Return the strides in elements."""
        return tuple(stride // tensor.itemsize for stride in tensor.strides)

    def reinterpret(self, tensor: StridedArray, dtype: str) -> StridedArray:
        """Return the same bytes with another dtype."""
        return tensor.view(np.dtype(dtype)).view(StridedArray)
