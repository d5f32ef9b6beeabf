"""Small implementations, each wrong in one way, for the tests of the harness.

All have tensors of plain data, which every channel copies; the fault is in one
operation. They need the standard library alone: each of their processes would import
NumPy otherwise, which takes longer than what most of them do.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
from array import array
from dataclasses import dataclass, replace

from sharedtensor_conformance.adapter import Implementation

TYPECODES = {"float32": "f", "float64": "d", "int32": "i", "int64": "q", "uint8": "B"}


@dataclass
class Copied:
    """A tensor whose values lie in one row."""

    values: array
    shape: tuple[int, ...]
    dtype: str

    def position(self, index: tuple[int, ...]) -> int:
        """Return where in the row an element is."""
        found = 0
        for size, place in zip(self.shape, index, strict=True):
            found = found * size + place
        return found


class Plain:
    """The operations of core. Nothing is wrong with it but that it copies."""

    multiprocessing = multiprocessing

    def enter_child(self, strategy):
        """Do nothing: there is no strategy."""

    def make(self, values, shape, dtype):
        return Copied(array(TYPECODES[dtype], values), tuple(shape), dtype)

    def is_tensor(self, value):
        return isinstance(value, Copied)

    def shape(self, tensor):
        return tensor.shape

    def dtype(self, tensor):
        return tensor.dtype

    def values(self, tensor):
        return tensor.values.tolist()

    def read(self, tensor, index):
        return tensor.values[tensor.position(index)]

    def write(self, tensor, index, value):
        tensor.values[tensor.position(index)] = value

    def encode(self, tensor):
        return tensor

    def decode(self, message):
        assert isinstance(message, Copied)
        return message

    def release(self, tensor):
        """Do nothing: the tensor goes with its last reference."""


class Crashes(Plain):
    """Its process dies of SIGSEGV when a value is written."""

    def write(self, tensor, index, value):
        signal.raise_signal(signal.SIGSEGV)


class Raises(Plain):
    """It raises when a tensor arrives."""

    def decode(self, message):
        raise RuntimeError("no such segment")


class Hangs(Plain):
    """It gives no answer when a value is written."""

    def write(self, tensor, index, value):
        threading.Event().wait()


plain = Implementation(
    name="Plain",
    operations=f"{__name__}:Plain",
    claims=frozenset({"core"}),
    start_methods=("fork",),
    dtypes=tuple(TYPECODES),
    channels=("pipe",),
    grace=0.3,
    deadline=2.0,
    preload=True,
)


def _adapter(operations: type, **fields: object):
    where = f"{__name__}:{operations.__name__}"
    return replace(plain, name=operations.__name__, operations=where, **fields)


crashes = _adapter(Crashes)
raises = _adapter(Raises)
hangs = _adapter(Hangs, deadline=4.0)
claims_no_core = _adapter(Plain, claims=frozenset({"views"}))
