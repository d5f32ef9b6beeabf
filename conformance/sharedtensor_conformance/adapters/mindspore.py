"""The adapter for MindSpore on the CPU.

`mindspore.multiprocessing` registers reducers for tensors and for their storages, which
are sent as descriptors; the rest is Python's `multiprocessing`. So `encode` and
`decode` do nothing. The adapter claims what MindSpore's public interface offers,
whether MindSpore keeps the promise or not:

* A storage can be sent only as a descriptor: ``strategies`` is not claimed.
* There is no public call that shares a tensor: ``share`` is not claimed, nor is
  ``modules``, which depends on it.
* Tensors have no ``is_leaf``, ``grad`` and ``detach``: ``grad`` is not claimed.
* ``conj()`` computes, and ``resize()`` returns another tensor: ``lazy`` and ``resize``
  are not claimed.
* The module's own `Process` and `Pool` prepare for a fork. Those of its contexts, which
  the suite uses, do not, and a forked worker gave no answer: ``fork`` is not judged.
* The kernel counts the holders of a descriptor, so ``lifetime`` is claimed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from sharedtensor_conformance.adapter import (
    NUMPY_DTYPES,
    Implementation,
    Index,
    Layout,
    Number,
    Tensor,
)
from sharedtensor_conformance.adapters.torch_like import CoreAndIdentity

conformance_adapter = Implementation(
    name="mindspore",
    operations="sharedtensor_conformance.adapters.mindspore:MindsporeOperations",
    claims=frozenset(
        {"core", "identity", "views", "arrays", "drop-in", "lifetime", "strategy-fd"}
    ),
    version="distribution:mindspore",
    strategies=("file_descriptor",),
    start_methods=("spawn", "forkserver"),
    dtypes=NUMPY_DTYPES,
    segment_pattern=r"mindspore_{pid}_.*",
    grace=10.0,
    deadline=30.0,
    patience=120.0,
    preload=True,
)
"""All of them are for a busy machine, where an import takes many seconds, and the end
of a process some. The deadline covers an import, too: the process of a manager begins
with it when the first tensor comes.

The import alone starts nothing, so a process that has done no more can be forked; the
first operations start threads, in each process its own (`enter_child`).
"""


class MindsporeOperations(CoreAndIdentity):
    """The operations on tensors of MindSpore."""

    def __init__(self) -> None:
        self.mindspore = import_module("mindspore")
        self.multiprocessing = import_module("mindspore.multiprocessing")
        operations = import_module("mindspore.ops.auto_generate")
        self.as_strided = operations.as_strided

    def enter_child(self, strategy: str) -> None:
        """Write and read a view with steps: the first time starts threads that stay.

        There is one strategy, so there is none to set.
        """
        base = self.make([0, 0, 0, 0], (4,), "float32")
        view = self.view(base, Layout("step", 0, (2,), (2,)))
        self.write(view, (0,), 1)
        self.values(view)

    def make(self, values: list[Number], shape: Index, dtype: str) -> Tensor:
        """Return a new tensor, made from a NumPy array, which MindSpore copies."""
        return self.mindspore.Tensor(np.array(values, dtype).reshape(shape))

    def is_tensor(self, value: object) -> bool:
        """Return whether `value` is a tensor."""
        return isinstance(value, self.mindspore.Tensor)

    def dtype(self, tensor: Tensor) -> str:
        """Return the dtype; in small letters, MindSpore's names are NumPy's."""
        return str(tensor.dtype).lower()

    def values(self, tensor: Tensor) -> list[Number]:
        """Return all values, flat."""
        values: list[Number] = tensor.asnumpy().ravel().tolist()
        return values

    def read(self, tensor: Tensor, index: Index) -> Number:
        """Return the value of one element."""
        value: Number = tensor.asnumpy()[index].item()
        return value

    def write(self, tensor: Tensor, index: Index, value: Number) -> None:
        """Write one element."""
        tensor[index] = self.mindspore.Tensor(value, dtype=tensor.dtype)

    def view(self, tensor: Tensor, layout: Layout) -> Tensor:
        """Return a window by the operation behind MindSpore's own views.

        A tensor that is made by ``set_()`` over the storage is left behind when the
        storage moves, which slices and transposed views are not.
        """
        offset = tensor.storage_offset() + layout.offset
        return self.as_strided(tensor, layout.shape, layout.strides, offset)

    def strides(self, tensor: Tensor) -> Index:
        """Return the strides in elements."""
        return tuple(tensor.stride())

    def reinterpret(self, tensor: Tensor, dtype: str) -> Tensor:
        """Return ``view(dtype)``."""
        return tensor.view(getattr(self.mindspore, dtype))

    def array(self, tensor: Tensor) -> Any:
        """Return ``numpy()``."""
        return tensor.numpy()
