"""Small libraries that deviate, each in one way, and their adapters.

All are NumPy arrays that every channel copies. Where MENDED is in the environment the
deviation is gone.
"""

import os
import signal
from dataclasses import replace

from sharedtensor_conformance.adapters import numpy_copy
from sharedtensor_conformance.adapters.numpy_copy import NumpyCopyOperations

plain = replace(
    numpy_copy.conformance_adapter,
    claims=frozenset({"core", "views", "identity"}),
    dtypes=("float32",),
    grace=0.3,
    deadline=2.0,
)


class Crashes(NumpyCopyOperations):
    """Its process dies when an element is written."""

    def write(self, tensor, index, value):
        if "MENDED" in os.environ:
            raise ValueError("it cannot be written")
        signal.raise_signal(signal.SIGSEGV)


class Hangs(NumpyCopyOperations):
    """Its process waits for ever when an element is written."""

    def write(self, tensor, index, value):
        while "MENDED" not in os.environ:
            signal.pause()


class Raises(NumpyCopyOperations):
    """It raises when a tensor arrives, but for those of the smoke test."""

    def decode(self, message):
        if "MENDED" not in os.environ and message.tolist() == [1, 2, 3, 4]:
            raise RuntimeError("no such segment")
        return message


class Grows(NumpyCopyOperations):
    """It says nothing when it is asked to grow, and does not grow."""

    def values(self, tensor):
        return super().values(tensor)

    def share(self, tensor):
        return tensor

    def is_shared(self, tensor):
        return True

    def clone(self, tensor):
        return tensor.copy()

    def resize(self, tensor, count):
        if "MENDED" in os.environ:
            raise ValueError("it cannot grow")


class Leaks(NumpyCopyOperations):
    """A descriptor stays open for each tensor that is sent."""

    def encode(self, tensor):
        if "MENDED" not in os.environ:
            os.open("/dev/null", os.O_RDONLY)
        return tensor


globals()["not_there"] = NumpyCopyOperations  # operations of which there is no source


def _adapter(operations, *claims):
    where = f"{__name__}:{operations.__name__}"
    name = operations.__name__.lower()
    return replace(
        plain, name=name, operations=where, claims=plain.claims | set(claims)
    )


crashes = _adapter(Crashes)
hangs = _adapter(Hangs)
raises = _adapter(Raises)
grows = _adapter(Grows, "share", "resize")
leaks = _adapter(Leaks)
without_source = replace(_adapter(Hangs), operations=f"{__name__}:not_there")
