"""Tensors whose memory processes share, on NumPy: the reference of the specification.

    import sharedtensor
    import sharedtensor.multiprocessing as mp

Sending a tensor through any channel of `sharedtensor.multiprocessing` moves its storage
into shared memory, once, and the receiver gets a tensor over the same memory. The
specification says what that entails, and the docstrings here cite its clauses.

The names are those of `functions`. No module of the package is imported later than with
it, at first use: another thread could fork meanwhile, and the child would wait for ever
for the lock of that import (clause THREAD-3).
"""

from .functions import *  # noqa: F403
from .functions import DTYPES as DTYPES
from .functions import __all__ as __all__

__version__ = "0.1.0"
