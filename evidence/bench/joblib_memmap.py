"""A driver for the benchmark that shares NumPy arrays as joblib does.

`joblib.Parallel` dumps an array that it sends into a file in ``/dev/shm`` once, and
each receiver maps the file to read it. This module does the same with joblib's public
functions, over the channels of the benchmark, and also for arrays that are so small
that `Parallel` would send a copy. The sender keeps its own array, so writes are not
shared. Therefore this is not an adapter for the suite, and it claims only that values
arrive.

``python -m bench --impl bench.joblib_memmap``
"""

from __future__ import annotations

import os
from importlib import import_module
from itertools import count
from multiprocessing.resource_tracker import ensure_running, register, unregister
from typing import Any
from weakref import finalize

import numpy as np
from sharedtensor_conformance.adapter import Implementation, Index, Number
from sharedtensor_conformance.adapters import numpy_copy

conformance_adapter = Implementation(
    name="joblib-memmap",
    operations="bench.joblib_memmap:JoblibOperations",
    claims=frozenset({"core"}),
    version="distribution:joblib",
    dtypes=("float32",),
    segment_pattern=r"joblib_{pid}_\d+",
)

FOLDER = "/dev/shm"
numbers = count()


class DumpedArray(np.ndarray[Any, Any]):
    """An array with the name of its file, once it is dumped."""

    file = ""


class Message:
    """The message for an array; it is unpickled as the mapped file."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return mapped, (self.file,)


def mapped(file: str) -> Any:
    """Return the array in a file, mapped for reading."""
    return import_module("joblib").load(file, mmap_mode="r")


def dumped(array: DumpedArray) -> str:
    """Dump an array into a file, unless it has one, and return the file.

    If this process is killed, the resource tracker removes the file, because segments
    of ``shm_open`` are in the same folder.
    """
    if not array.file:
        name = f"joblib_{os.getpid()}_{next(numbers)}"
        register(f"/{name}", "shared_memory")
        array.file = f"{FOLDER}/{name}"
        import_module("joblib").dump(np.asarray(array), array.file)
        finalize(array, remove, name, os.getpid())
    return array.file


def remove(name: str, maker: int) -> None:
    """Remove the file of a deleted array, if this process is its maker."""
    if os.getpid() == maker:
        os.unlink(f"{FOLDER}/{name}")
        unregister(f"/{name}", "shared_memory")


class JoblibOperations(numpy_copy.NumpyCopyOperations):
    """The operations for arrays that joblib dumps and maps."""

    def enter_child(self, strategy: str) -> None:
        """Start the resource tracker that all children will share."""
        ensure_running()

    def make(self, values: list[Number], shape: Index, dtype: str) -> Any:
        """Return a new array."""
        return np.array(values, dtype).reshape(shape).view(DumpedArray)

    def encode(self, tensor: Any) -> Any:
        """Return the message for the array."""
        return Message(dumped(tensor))

    def decode(self, message: Any) -> Any:
        """Return the received message, which is an array."""
        return message
