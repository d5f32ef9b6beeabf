"""NumPy arrays that joblib maps from files: a driver for the benchmark alone.

Who hands arrays to `joblib.Parallel` shares them like this: an array that is sent is
dumped into a file in ``/dev/shm`` once, and each receiver maps the file, to read it.
This does the same by joblib's public functions, over the channels of the benchmark, and
without the limit of size below which `Parallel` sends a copy. The sender keeps its own
array, so nothing is shared that somebody writes; therefore this is no adapter that the
suite would judge, and claims no more than that values arrive.

``shared-tensor-spec bench --impl sharedtensor_conformance.bench.joblib_memmap``
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
    operations="sharedtensor_conformance.bench.joblib_memmap:JoblibOperations",
    claims=frozenset({"core"}),
    version="distribution:joblib",
    dtypes=("float32",),
    segment_pattern=r"joblib_{pid}_\d+",
)

FOLDER = "/dev/shm"
numbers = count()


class DumpedArray(np.ndarray[Any, Any]):
    """An array that knows its file, once it has one."""

    file = ""


class Message:
    """What travels instead of an array; it arrives as the mapped file."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return mapped, (self.file,)


def mapped(file: str) -> Any:
    """Return the array in a file, which is mapped to be read."""
    return import_module("joblib").load(file, mmap_mode="r")


def dumped(array: DumpedArray) -> str:
    """Dump an array into a file, unless it is in one, and return the file.

    The resource tracker removes the file where this process is killed: what is named
    by ``shm_open`` lies in the same folder.
    """
    if not array.file:
        name = f"joblib_{os.getpid()}_{next(numbers)}"
        register(f"/{name}", "shared_memory")
        array.file = f"{FOLDER}/{name}"
        import_module("joblib").dump(np.asarray(array), array.file)
        finalize(array, remove, name, os.getpid())
    return array.file


def remove(name: str, maker: int) -> None:
    """Remove the file of an array that is gone, unless this is a forked copy of it."""
    if os.getpid() == maker:
        os.unlink(f"{FOLDER}/{name}")
        unregister(f"/{name}", "shared_memory")


class JoblibOperations(numpy_copy.NumpyCopyOperations):
    """What owner and peers do with arrays that joblib dumps and maps."""

    def enter_child(self, strategy: str) -> None:
        """Start the resource tracker that children will have in common."""
        ensure_running()

    def make(self, values: list[Number], shape: Index, dtype: str) -> Any:
        """Return a new array."""
        return np.array(values, dtype).reshape(shape).view(DumpedArray)

    def encode(self, tensor: Any) -> Any:
        """Return what arrives as the mapped file of the array."""
        return Message(dumped(tensor))

    def decode(self, message: Any) -> Any:
        """Return the message: it has arrived as an array."""
        return message
