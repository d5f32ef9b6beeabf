"""Small implementations, each wrong in one way, for the tests of the harness.

All are NumPy arrays that every channel copies; the fault is in one operation.
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace

from sharedtensor_conformance.adapters import numpy_copy
from sharedtensor_conformance.adapters.numpy_copy import NumpyCopyOperations

_plain = replace(
    numpy_copy.conformance_adapter,
    claims=frozenset({"core"}),
    start_methods=("spawn",),
    dtypes=("float32",),
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


class Hangs(_Core):
    """It never comes back when a value is written."""

    def write(self, tensor, index, value):
        threading.Event().wait()


class Raises(_Core):
    """It raises when a tensor arrives."""

    def decode(self, message):
        raise RuntimeError("no such segment")


class LosesTheTensor(_Core):
    """After the first few, None arrives where a tensor was sent."""

    arrived = 0

    def decode(self, message):
        LosesTheTensor.arrived += 1
        return super().decode(message) if LosesTheTensor.arrived < 3 else None


class LeaksOneDescriptor(_Core):
    """It opens a descriptor for one of the tensors that it makes, and forgets it."""

    made = 0

    def make(self, values, shape, dtype):
        LeaksOneDescriptor.made += 1
        if LeaksOneDescriptor.made == 2:
            os.open(os.devnull, os.O_RDONLY)
        return super().make(values, shape, dtype)


class LeavesAFile(_Core):
    """It leaves a file in /dev/shm for one of the tensors that it makes."""

    made = 0

    def make(self, values, shape, dtype):
        LeavesAFile.made += 1
        if LeavesAFile.made == 2:
            open(f"/dev/shm/miniature-{os.getpid()}", "w").close()
        return super().make(values, shape, dtype)


class DiesAtStart(_Core):
    """Its processes die when they import it."""

    def enter_child(self, strategy):
        os._exit(3)


def _adapter(operations: type, **fields: object):
    where = f"{__name__}:{operations.__name__}"
    return replace(_plain, name=operations.__name__, operations=where, **fields)


plain = _adapter(Plain)
crashes = _adapter(Crashes)
hangs = _adapter(Hangs)
raises = _adapter(Raises)
loses_the_tensor = _adapter(LosesTheTensor)
leaks_one_descriptor = _adapter(LeaksOneDescriptor)
leaves_a_file = _adapter(LeavesAFile, segment_pattern=r"miniature-{pid}")
dies_at_start = _adapter(DiesAtStart)
claims_too_much = _adapter(Plain, claims=frozenset({"core", "grad"}))
claims_no_core = _adapter(Plain, claims=frozenset({"views"}))
claims_nonsense = _adapter(Plain, claims=frozenset({"core", "telepathy"}))
not_an_adapter = "a string"
