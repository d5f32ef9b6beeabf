"""Tensors whose memory processes share, on NumPy: the reference of the specification.

    import sharedtensor
    import sharedtensor.multiprocessing as mp

Sending a tensor through any channel of `sharedtensor.multiprocessing` moves its storage
into shared memory, once, and the receiver gets a tensor over the same memory. The
specification says what that entails, and the docstrings here cite its clauses.
"""

from math import prod as _prod
from typing import Any

import numpy as _np

from . import reducers as _reducers
from .errors import (
    HandleError,
    ManagerError,
    NonLeafError,
    ResizeError,
    ResourceError,
    SharedTensorError,
    StrategyError,
)
from .nn import Module, Parameter
from .storage import Storage
from .strategies import (
    get_all_sharing_strategies,
    get_sharing_strategy,
    set_sharing_strategy,
)
from .tensor import Tensor, check_dtype, contiguous, new_shape

__version__ = "0.1.0"

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "longdouble"),
    *("complex64", "complex128", "clongdouble"),
)

globals().update({name: _np.dtype(name) for name in DTYPES if name != "bool"})
bool_ = _np.dtype("bool")

__all__ = [
    *("bool_" if name == "bool" else name for name in DTYPES),
    "HandleError",
    "ManagerError",
    "Module",
    "NonLeafError",
    "Parameter",
    "ResizeError",
    "ResourceError",
    "SharedTensorError",
    "Storage",
    "StrategyError",
    "Tensor",
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
    """A private tensor with a copy of the data.

    Python's floats become float32 and its integers int64; arrays keep their dtype.
    Raises `TypeError` for a dtype that is not numeric or boolean.
    """
    return Tensor(data, dtype, requires_grad)


def zeros(*shape: Any, dtype: Any = "float32", requires_grad: bool = False) -> Tensor:
    """A private tensor of zeros; memory is taken from the system on first use."""
    sizes, kind = new_shape(shape), check_dtype(_np.dtype(dtype))
    storage = Storage(_prod(sizes) * kind.itemsize)
    made = Tensor._over(storage, kind.str, 0, sizes, contiguous(sizes))
    return made.requires_grad_(requires_grad)


def empty(*shape: Any, dtype: Any = "float32", requires_grad: bool = False) -> Tensor:
    """A private tensor whose values are unspecified; here they are zeros."""
    return zeros(*shape, dtype=dtype, requires_grad=requires_grad)


def ones(*shape: Any, dtype: Any = "float32", requires_grad: bool = False) -> Tensor:
    """A private tensor of ones."""
    return zeros(*shape, dtype=dtype).fill_(1).requires_grad_(requires_grad)


def arange(*bounds: Any, dtype: Any = None) -> Tensor:
    """A private tensor of evenly spaced values, as `numpy.arange` gives them."""
    return Tensor(_np.arange(*bounds, dtype=dtype))


def from_numpy(array: _np.ndarray) -> Tensor:
    """A private tensor with a copy of an array's values.

    It is a copy because the array's memory is not ours: it cannot become a segment
    without changing its address, and the array would be left behind in silence.
    """
    return Tensor(array)


_reducers.register()
