"""SharedArray: NumPy arrays in files of ``/dev/shm`` that are created by name.

`create(name)` returns an array over a new file, `attach(name)` one over the same file
in another process, and `delete(name)` removes the name. Nothing is sent by itself, so
a message is the name, which the base object of an array tells. What is claimed is what
the documentation of the package promises:

* An array is created in shared memory, is never moved there and does not say that it
  is shared: ``share`` is not claimed.
* What is returned is a NumPy array over that memory: ``arrays`` is claimed.
* `attach` returns the whole array. A slice has no name: ``views`` is not claimed.
* An array may be attached several times, each at a cost of one mapping: nothing
  promises one address, so ``identity`` is not claimed.
* An array is documented to stay when it is dropped and when its process exits, until
  somebody calls `delete`: that is the opposite of ``lifetime``. Who has to call it is
  left to the program. Here the maker does, when it drops the array. Then LIFE-7 can
  hold, and LIFE-2 cannot, since nothing tells the maker that its name is in flight.
* Where ``/dev/shm`` is full a process is documented to be killed by a signal, and
  nothing is said of names that others made: neither ``faults`` nor ``forgery``.
"""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from multiprocessing.util import Finalize
from typing import Any

import numpy as np

from sharedtensor_conformance.adapter import Implementation, Index, Number

conformance_adapter = Implementation(
    name="sharedarray",
    operations="sharedtensor_conformance.adapters.sharedarray:SharedArrayOperations",
    claims=frozenset({"core", "arrays"}),
    version="distribution:SharedArray",
    dtypes=(
        "bool",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    ),
    private=False,
    segment_pattern=r"sharedarray_{pid}_\d+",
    preload=True,
)

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Message:
    """What travels instead of an array: the name that `attach` takes."""

    name: str


class SharedArrayOperations:
    """What owner and peers do with arrays of SharedArray."""

    multiprocessing = multiprocessing
    numbers = count()

    def __init__(self) -> None:
        self.library = import_module("SharedArray")

    def enter_child(self, strategy: str) -> None:
        """Do nothing: there is no strategy."""

    def make(self, values: list[Number], shape: Index, dtype: str) -> Array:
        """Return an array of a new name, which goes when the array is dropped."""
        name = f"shm://sharedarray_{os.getpid()}_{next(self.numbers)}"
        array: Array = self.library.create(name, shape, dtype)
        array[...] = np.array(values, dtype).reshape(shape)
        # Unlike weakref.finalize, this also runs when a child of multiprocessing exits.
        Finalize(array, self.library.delete, args=(name,), exitpriority=1)
        return array

    def is_tensor(self, value: object) -> bool:
        """Tell arrays, and the messages for them, apart from plain objects."""
        return isinstance(value, np.ndarray | Message)

    def encode(self, tensor: Array) -> Message:
        """Return the name, which the base object of an array has."""
        base: Any = tensor.base
        return Message(base.name)

    def decode(self, message: Message) -> Array:
        """Attach the array that the message names."""
        array: Array = self.library.attach(message.name)
        return array

    def release(self, tensor: Array) -> None:
        """Do nothing: the mapping goes with the last reference to the array."""

    def shape(self, tensor: Array) -> Index:
        """Return the shape."""
        return tuple(tensor.shape)

    def dtype(self, tensor: Array) -> str:
        """Return the dtype."""
        return str(tensor.dtype)

    def values(self, tensor: Array) -> list[Number]:
        """Return all values, flat."""
        values: list[Number] = tensor.ravel().tolist()
        return values

    def read(self, tensor: Array, index: Index) -> Number:
        """Return the value of one element."""
        value: Number = tensor[index].item()
        return value

    def write(self, tensor: Array, index: Index, value: Number) -> None:
        """Write one element."""
        tensor[index] = value

    def array(self, tensor: Array) -> Array:
        """Return the array itself: it is NumPy's."""
        return tensor
