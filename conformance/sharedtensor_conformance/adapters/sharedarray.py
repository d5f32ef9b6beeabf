"""The adapter for SharedArray: NumPy arrays in named files of ``/dev/shm``.

`create(name)` returns an array over a new file, `attach(name)` an array over the same
file in another process, and `delete(name)` removes the name. The package sends nothing
itself, so a message is the name, which the base object of an array has. The adapter
claims what the documentation of the package promises:

* An array is created in shared memory, is never moved there and has no query whether it
  is shared: ``share`` is not claimed.
* The functions return NumPy arrays over that memory: ``arrays`` is claimed.
* `attach` returns the whole array. A slice has no name: ``views`` is not claimed.
* An array may be attached several times, each with its own mapping: one address is not
  promised, so ``identity`` is not claimed.
* By the documentation, an array stays when it is dropped and when its process exits,
  until a program calls `delete`. That is the opposite of ``lifetime``. The program
  decides which process calls `delete`. Here the maker does, when it drops the array. So
  LIFE-7 can hold, and LIFE-2 cannot, because the maker does not know whether a message
  with the name is in flight.
* By the documentation, a process is killed by a signal if ``/dev/shm`` is full, and
  names that others made are not mentioned: neither ``faults`` nor ``forgery`` is
  claimed.
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

from sharedtensor_conformance.adapter import NUMPY_DTYPES, Implementation, Index, Number

conformance_adapter = Implementation(
    name="sharedarray",
    operations="sharedtensor_conformance.adapters.sharedarray:SharedArrayOperations",
    claims=frozenset({"core", "arrays"}),
    version="distribution:SharedArray",
    dtypes=NUMPY_DTYPES,
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
    """The operations on arrays of SharedArray."""

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
        """Return a view: the array is NumPy's, and is dropped by itself."""
        return tensor.view()
