"""The adapter for tensordict: its `MemoryMappedTensor`, which has its own reducers.

The adapter judges what tensordict adds to PyTorch. A `TensorDict` in shared memory
consists of ordinary tensors of PyTorch, which PyTorch's reducers send: the adapter
``torch`` judges these. A `MemoryMappedTensor` without a file name is in anonymous
shared memory, and is sent by a descriptor. One with a file name is in a file of the
caller, who has to remove it, and is sent by the name: this is not judged, because the
caller decides what happens to the file. The adapter claims what the documentation
promises:

* A tensor is made in shared memory, and is not moved there: ``share`` is not claimed.
* Indexing returns a `MemoryMappedTensor` over the same storage, which can be pickled:
  ``views`` is claimed, for slices. The windows with steps that the suite uses include
  some with two dimensions on a one-dimensional tensor, which an index cannot make.
* It cannot require gradients: ``grad`` and ``modules`` are not claimed. Nested tensors
  can be made and sent: they are a kind.
* The documentation does not mention addresses, NumPy arrays over it, ends of processes,
  limits, nor handles that others made: ``identity``, ``arrays``, ``lifetime``,
  ``faults`` and ``forgery`` are not claimed.
"""

from __future__ import annotations

import multiprocessing
from importlib import import_module
from typing import Any

from sharedtensor_conformance.adapter import (
    COMMON_DTYPES,
    Implementation,
    Index,
    Layout,
    Number,
    Tensor,
)

conformance_adapter = Implementation(
    name="tensordict",
    operations="sharedtensor_conformance.adapters.tensordict:TensorDictOperations",
    claims=frozenset({"core", "views", "kinds"}),
    version="distribution:tensordict",
    dtypes=COMMON_DTYPES,
    kinds=("nested",),
    views=("slices",),
    private=False,
    segment_pattern=r"pym-{pid}-.*",
    deadline=30.0,
    patience=120.0,
    preload=True,
)


class TensorDictOperations:
    """The operations on memory-mapped tensors."""

    multiprocessing = multiprocessing

    def __init__(self) -> None:
        self.torch = import_module("torch")
        self.library = import_module("tensordict")

    def enter_child(self, strategy: str) -> None:
        """Forgo threads of PyTorch: a child forked after one was used hangs."""
        self.torch.set_num_threads(1)

    def make(self, values: list[Number], shape: Index, dtype: str) -> Tensor:
        """Return a new tensor in anonymous shared memory."""
        private = self.torch.tensor(values, dtype=getattr(self.torch, dtype))
        return self.library.MemoryMappedTensor.from_tensor(private.reshape(shape))

    def is_tensor(self, value: object) -> bool:
        """Return whether `value` is a memory-mapped tensor."""
        return isinstance(value, self.library.MemoryMappedTensor)

    def encode(self, tensor: Tensor) -> Tensor:
        """Return the tensor: it pickles itself."""
        return tensor

    def decode(self, message: Tensor) -> Tensor:
        """Return the message: it is a tensor."""
        return message

    def release(self, tensor: Tensor) -> None:
        """Do nothing: the last reference frees the tensor."""

    def shape(self, tensor: Tensor) -> Index:
        """Return the shape."""
        return tuple(tensor.shape)

    def dtype(self, tensor: Tensor) -> str:
        """Return the dtype; PyTorch's names are NumPy's."""
        return str(tensor.dtype).removeprefix("torch.")

    def values(self, tensor: Tensor) -> list[Number]:
        """Return all values, flat."""
        values: list[Number] = tensor.flatten().tolist()
        return values

    def read(self, tensor: Tensor, index: Index) -> Number:
        """Return the value of one element."""
        value: Number = tensor[index].item()
        return value

    def write(self, tensor: Tensor, index: Index, value: Number) -> None:
        """Write one element."""
        tensor[index] = self.torch.tensor(value, dtype=tensor.dtype)

    def view(self, tensor: Tensor, layout: Layout) -> Tensor:
        """Return a slice, or one element, by an index."""
        if layout.shape == ():
            return tensor[layout.offset]
        (length,) = layout.shape
        return tensor[layout.offset : layout.offset + length]

    def strides(self, tensor: Tensor) -> Index:
        """Return the strides in elements."""
        return tuple(tensor.stride())

    def make_kind(self, kind: str) -> Tensor:
        """Return a nested tensor of two rows of different length."""
        rows = [self.torch.tensor([1.0, 2.0]), self.torch.tensor([3.0, 4.0, 5.0])]
        nested = self.torch.nested.nested_tensor(rows)
        return self.library.MemoryMappedTensor.from_tensor(nested)

    def describe(self, tensor: Tensor) -> list[Any]:
        """Return the class, the dtype and the rows."""
        rows = [row.tolist() for row in self.torch.Tensor.unbind(tensor)]
        return [type(tensor).__name__, str(tensor.dtype), tensor.is_nested, rows]

    def change(self, tensor: Tensor, value: int) -> bool:
        """Write to the first element of the first row."""
        self.torch.Tensor.unbind(tensor)[0][0] = value
        return True
