"""Tensors whose memory processes share, on NumPy: the reference of the specification.

    import sharedtensor
    import sharedtensor.multiprocessing as mp

Sending a tensor through any channel of `sharedtensor.multiprocessing` moves its storage
into shared memory, once, and the receiver gets a tensor over the same memory. The
specification says what that entails, and the docstrings here cite its clauses.

No module of the package is imported later than with it, at first use: another thread
could fork meanwhile, and the child would wait for ever for the lock of that import
(clause THREAD-3).
"""

from math import prod as _prod
from typing import Any

import numpy as _np

from . import layout
from .errors import (
    HandleError,
    ManagerError,
    NestedMoveError,
    NonLeafError,
    ResizeError,
    ResourceError,
    SharedTensorError,
    StrategyError,
    ThreadError,
)
from .nn import Module, Parameter
from .protocol import get_sharing_strategy, set_sharing_strategy
from .storage import Storage
from .strategies import get_all_sharing_strategies
from .tensors import Tensor

__version__ = "0.1.0"

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "longdouble"),
    *("complex64", "complex128", "clongdouble"),
)

bool_, int8, int16, int32, int64, *_others = map(_np.dtype, DTYPES)
uint8, uint16, uint32, uint64, *_others = _others
float16, float32, float64, longdouble, *_others = _others
complex64, complex128, clongdouble = _others

__all__ = [
    *("bool_" if name == "bool" else name for name in DTYPES),
    "HandleError",
    "ManagerError",
    "Module",
    "NestedMoveError",
    "NonLeafError",
    "Parameter",
    "ResizeError",
    "ResourceError",
    "SharedTensorError",
    "Storage",
    "StrategyError",
    "Tensor",
    "ThreadError",
    "arange",
    "empty",
    "from_numpy",
    "get_all_sharing_strategies",
    "get_sharing_strategy",
    "ones",
    "set_sharing_strategy",
    "tensor",
    "zeros",
]


def tensor(data: Any, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Return a private tensor with a copy of the data.

    Python's floats become float32 and its integers int64; arrays keep their dtype.
    Raises `TypeError` for a dtype that is not numeric or boolean.
    """
    return Tensor(data, dtype, requires_grad)


def zeros(*shape: Any, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Return a private tensor of zeros, of float32 unless another dtype is given.

    Memory is taken on first use.
    """
    kind = layout.check_dtype(_np.dtype("float32" if dtype is None else dtype))
    sizes = layout.new_shape(shape)
    storage = Storage(_prod(sizes) * kind.itemsize)
    made = Tensor.__new__(Tensor)
    made.look_at(storage, kind.str, 0, sizes, layout.contiguous(sizes))
    return made.requires_grad_(requires_grad)


def empty(*shape: Any, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Return a private tensor whose values are unspecified; here they are zeros."""
    return zeros(*shape, dtype=dtype, requires_grad=requires_grad)


def ones(*shape: Any, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Return a private tensor of ones."""
    return zeros(*shape, dtype=dtype).fill_(1).requires_grad_(requires_grad)


def arange(*bounds: Any, dtype: Any = None) -> Tensor:
    """Return a private tensor of evenly spaced values, as `numpy.arange` gives them."""
    return Tensor(_np.arange(*bounds, dtype=dtype))


def from_numpy(array: _np.ndarray) -> Tensor:
    """Return a private tensor with a copy of an array's values.

    It is a copy because the array's memory is not ours: it cannot become a segment
    without changing its address, and the array would be left behind in silence.
    """
    return Tensor(array)
