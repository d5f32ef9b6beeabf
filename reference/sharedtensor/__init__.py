"""Tensors whose memory processes share, on NumPy: the reference of the specification.

    import sharedtensor
    import sharedtensor.multiprocessing as mp

Sending a tensor through any channel of `sharedtensor.multiprocessing` moves its storage
into shared memory, once, and the receiver gets a tensor over the same memory. The
specification says what that entails, and the docstrings here cite its clauses.

The names are those of `functions`, which is imported when the first of them is used: a
process that is spawned starts without NumPy, and loads it with its first tensor.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .functions import *  # noqa: F403

__version__ = "0.1.0"

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "longdouble"),
    *("complex64", "complex128", "clongdouble"),
)

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


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(_import_module(".functions", __name__), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
