"""The adapter for shared-ndarray2: NumPy arrays over `multiprocessing.shared_memory`.

`SharedNDArray` wraps a `SharedMemory`, a shape and a dtype, and is pickled by these.
Its memory comes from a `SharedMemoryManager`. By the documentation, the memory is
released when the manager is left, once no process uses it. The adapter claims what the
documentation promises:

* An array is made in shared memory, is never moved there and has no query whether it is
  shared: ``share`` is not claimed.
* `get` returns a NumPy array over that memory: ``arrays`` is claimed.
* A slice is a NumPy array, which is sent as a copy: ``views`` is not claimed.
* The documentation does not promise one address for a storage that is received twice:
  ``identity`` is not claimed.
* Memory stays until the manager is left, which has to be after all processes that use
  it. That is the opposite of ``lifetime``. So LIFE-2 can hold, and LIFE-7 cannot.
* The documentation does not mention limits, nor names that others made: neither
  ``faults`` nor ``forgery`` is claimed.

Each process has its own manager, which is started when the process makes its first
array. A daemonic process, such as a pool's worker, may not start one. There, an array
is made over its own `SharedMemory`, which is also documented, and its maker unlinks the
memory at the end.
"""

from __future__ import annotations

import multiprocessing
import os
from importlib import import_module
from multiprocessing.managers import SharedMemoryManager
from multiprocessing.resource_tracker import ensure_running
from multiprocessing.shared_memory import SharedMemory
from multiprocessing.util import Finalize
from typing import Any

import numpy as np

from sharedtensor_conformance.adapter import (
    NUMPY_DTYPES,
    Implementation,
    Index,
    Number,
    Tensor,
)

conformance_adapter = Implementation(
    name="shared-ndarray2",
    operations="sharedtensor_conformance.adapters.shared_ndarray2:SharedNDArrays",
    claims=frozenset({"core", "arrays"}),
    version="distribution:shared-ndarray2",
    dtypes=NUMPY_DTYPES,
    private=False,
    segment_pattern=r"psm_[0-9a-f]+",
    preload=True,
)


class SharedNDArrays:
    """The operations on arrays of shared-ndarray2."""

    multiprocessing = multiprocessing

    def __init__(self) -> None:
        self.library = import_module("shared_ndarray2")
        self.managers: dict[int, SharedMemoryManager] = {}

    def enter_child(self, strategy: str) -> None:
        """Start the resource tracker that children will have in common."""
        ensure_running()

    def make(self, values: list[Number], shape: Index, dtype: str) -> Tensor:
        """Return an array of this process's manager, or where there is none without."""
        array = np.array(values, dtype).reshape(shape)
        if multiprocessing.current_process().daemon:
            return self.make_alone(array)
        return self.library.SharedNDArray.from_array(self.manager(), array)

    def manager(self) -> SharedMemoryManager:
        """Return the manager of this process, which is started at the first call.

        Of two that two threads start at once the second is dropped, and so left.
        """
        if os.getpid() not in self.managers:
            manager = SharedMemoryManager()
            manager.start()
            self.managers.setdefault(os.getpid(), manager)
        return self.managers[os.getpid()]

    def make_alone(self, array: np.ndarray[Any, Any]) -> Tensor:
        """Return an array over a `SharedMemory` that this process unlinks."""
        memory = SharedMemory(create=True, size=array.nbytes)
        made = self.library.SharedNDArray(memory, array.shape, array.dtype)
        made[...] = array
        Finalize(made, memory.unlink, exitpriority=1)
        return made

    def is_tensor(self, value: object) -> bool:
        """Return whether `value` is an array of the library."""
        return isinstance(value, self.library.SharedNDArray)

    def encode(self, tensor: Tensor) -> Tensor:
        """Return the array, which is pickled by its name, its shape and its dtype."""
        return tensor

    def decode(self, message: Tensor) -> Tensor:
        """Return the message: it is an array."""
        return message

    def release(self, tensor: Tensor) -> None:
        """Do nothing: the mapping goes with the last reference to the array."""

    def shape(self, tensor: Tensor) -> Index:
        """Return the shape."""
        return tuple(tensor.shape)

    def dtype(self, tensor: Tensor) -> str:
        """Return the dtype."""
        return str(tensor.dtype)

    def values(self, tensor: Tensor) -> list[Number]:
        """Return all values, flat."""
        values: list[Number] = tensor.get().ravel().tolist()
        return values

    def read(self, tensor: Tensor, index: Index) -> Number:
        """Return the value of one element."""
        value: Number = tensor[index].item()
        return value

    def write(self, tensor: Tensor, index: Index, value: Number) -> None:
        """Write one element."""
        tensor[index] = value

    def array(self, tensor: Tensor) -> Any:
        """Return the array that `get` makes over the memory."""
        return tensor.get()
