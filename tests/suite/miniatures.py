"""Small implementations, each wrong in one way, for the tests of the harness.

All are NumPy arrays that every channel copies; the fault is in one operation.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace

from sharedtensor_conformance.adapters import numpy_copy
from sharedtensor_conformance.adapters.numpy_copy import NumpyCopyOperations

_plain = replace(
    numpy_copy.conformance_adapter,
    claims=frozenset({"core"}),
    start_methods=("fork",),
    dtypes=("float32", "float64", "int32", "uint8"),
    channels=("pipe",),
    grace=0.3,
    deadline=2.0,
)


class _Core(NumpyCopyOperations):
    """The operations of core alone."""

    address = view = strides = reinterpret = property()  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> object:
        if name in ("address", "view", "strides", "reinterpret"):
            raise AttributeError(name)
        return super().__getattribute__(name)


class Plain(_Core):
    """Nothing is wrong with it but that it copies."""


class Crashes(_Core):
    """Its process dies of SIGSEGV when a value is written."""

    def write(self, tensor, index, value):
        os.kill(os.getpid(), signal.SIGSEGV)


class Raises(_Core):
    """It raises when a tensor arrives."""

    def decode(self, message):
        raise RuntimeError("no such segment")


def _adapter(operations: type, **fields: object):
    where = f"{__name__}:{operations.__name__}"
    return replace(_plain, name=operations.__name__, operations=where, **fields)


plain = _adapter(Plain)
crashes = _adapter(Crashes)
raises = _adapter(Raises)
claims_too_much = _adapter(Plain, claims=frozenset({"core", "grad"}))
claims_no_core = _adapter(Plain, claims=frozenset({"views"}))
claims_nonsense = _adapter(Plain, claims=frozenset({"core", "telepathy"}))
not_an_adapter = "a string"
