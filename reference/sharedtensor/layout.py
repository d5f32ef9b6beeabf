"""Dtypes, shapes and strides: what a tensor can be, without a tensor."""

import operator
from typing import Any

import numpy as np

NUMERIC = "biufc"


def check_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype, if tensors can have it. Clauses VIEW-5, VIEW-6.

    Raises `TypeError`.
    """
    if dtype.kind not in NUMERIC:
        raise TypeError(f"Tensors hold numbers and booleans; {dtype} is neither.")
    return dtype


def default_dtype(dtype: np.dtype) -> np.dtype:
    """Return what Python's numbers become: float32 and complex64, as is the custom."""
    narrow = {"float64": np.float32, "complex128": np.complex64}
    return np.dtype(narrow.get(dtype.name, dtype))


def sizes_of(shape: tuple[Any, ...]) -> tuple[int, ...]:
    """Return `(2, 3)` for either of the calls `f(2, 3)` and `f((2, 3))`."""
    if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
        shape = tuple(shape[0])
    return tuple(operator.index(size) for size in shape)


def new_shape(shape: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the sizes of a tensor to be made.

    Raises `ValueError` if one is negative.
    """
    sizes = sizes_of(shape)
    if any(size < 0 for size in sizes):
        raise ValueError(f"{sizes} is no shape; give sizes of 0 or more.")
    return sizes


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a tensor in C order."""
    strides, distance = [], 1
    for size in reversed(shape):
        strides.append(distance)
        distance *= max(size, 1)
    return tuple(reversed(strides))


def is_basic(part: Any) -> bool:
    """Return whether NumPy makes a view, and no copy, for this part of an index."""
    whole = isinstance(part, (int, np.integer)) and not isinstance(part, bool)
    return whole or part is None or part is Ellipsis or isinstance(part, slice)
