"""The adapter for Paddle on the CPU, with both strategies of its reducers.

`paddle.incubate.multiprocessing` registers reducers for tensors and passes on the rest
of Python's `multiprocessing`, so `encode` and `decode` do nothing. The adapter claims
what Paddle's public interface offers, whether Paddle keeps the promise or not:

* A flag, and not a function, selects one of its two strategies, so ``strategies`` is
  not claimed; the adapter sets the flag. Paddle's filename is ``file_system``.
* There is no public call that shares a tensor: ``share`` is not claimed, nor is
  ``modules``, which depends on it.
* ``numpy()`` copies and ``conj()`` computes: ``arrays`` and ``lazy`` are not claimed.
* Segments contain a count of their holders, so ``lifetime`` is claimed. No process
  manages the names, so ``manager`` is not claimed.
"""

from __future__ import annotations

from importlib import import_module

import numpy as np

from sharedtensor_conformance.adapter import (
    COMMON_DTYPES,
    Implementation,
    Index,
    Layout,
    Number,
    Tensor,
)
from sharedtensor_conformance.adapters.torch_like import CoreAndIdentity, Grad

conformance_adapter = Implementation(
    name="paddle",
    operations="sharedtensor_conformance.adapters.paddle:PaddleOperations",
    claims=frozenset(
        {
            "core",
            "identity",
            "views",
            "grad",
            "drop-in",
            "lifetime",
            "strategy-fd",
            "strategy-fs",
        }
    ),
    version="distribution:paddlepaddle",
    strategies=("file_descriptor", "file_system"),
    dtypes=COMMON_DTYPES,
    segment_pattern=r"paddle_{pid}_.*",
    grace=10.0,
    deadline=30.0,
    patience=120.0,
    preload=True,
)
"""All of them are for a busy machine, where an import takes many seconds, and the end
of a process some. The deadline covers thousands of writes that are one request.
"""

FLAG = "FLAGS_dataloader_use_file_descriptor"
"""Decides how the reducers name a segment, whatever its own name says."""


class PaddleOperations(CoreAndIdentity, Grad):
    """The operations on tensors of Paddle."""

    def __init__(self) -> None:
        self.paddle = import_module("paddle")
        self.multiprocessing = import_module("paddle.incubate.multiprocessing")

    def enter_child(self, strategy: str) -> None:
        """Set the flag of the strategy, which does not cross spawn, and the device."""
        self.paddle.set_flags({FLAG: strategy == "file_descriptor"})
        self.paddle.set_device("cpu")

    def make(self, values: list[Number], shape: Index, dtype: str) -> Tensor:
        """Return a new tensor, made from a NumPy array, which Paddle copies."""
        return self.paddle.to_tensor(np.array(values, dtype).reshape(shape))

    def is_tensor(self, value: object) -> bool:
        """Return whether `value` is a tensor."""
        return isinstance(value, self.paddle.Tensor)

    def dtype(self, tensor: Tensor) -> str:
        """Return the dtype; but for bfloat16, Paddle's names are NumPy's."""
        return str(tensor.dtype).removeprefix("paddle.")

    def values(self, tensor: Tensor) -> list[Number]:
        """Return all values, flat."""
        values: list[Number] = tensor.numpy().ravel().tolist()
        return values

    def read(self, tensor: Tensor, index: Index) -> Number:
        """Return the value of one element."""
        value: Number = tensor.numpy()[index].item()
        return value

    def write(self, tensor: Tensor, index: Index, value: Number) -> None:
        """Write one element, through a view of it alone.

        An assignment to an element of the tensor itself is refused where the tensor has
        no dimensions, and is lost where its elements overlap.
        """
        strides = zip(index, self.strides(tensor), strict=True)
        element = sum(place * stride for place, stride in strides)
        at = Layout("element", element, (1,), (1,))
        self.view(tensor.detach(), at)[0] = self.make([value], (), self.dtype(tensor))

    def view(self, tensor: Tensor, layout: Layout) -> Tensor:
        """Return a window by ``as_strided()``, whose offset is in bytes."""
        offset = tensor.offset + layout.offset * tensor.element_size()
        return self.paddle.as_strided(
            tensor, list(layout.shape), list(layout.strides), offset
        )

    def strides(self, tensor: Tensor) -> Index:
        """Return the strides in elements."""
        return tuple(tensor.strides)

    def reinterpret(self, tensor: Tensor, dtype: str) -> Tensor:
        """Return ``view(dtype)``."""
        return tensor.view(dtype)

    def requires_grad(self, tensor: Tensor) -> bool:
        """Return the opposite of ``stop_gradient``."""
        return not tensor.stop_gradient

    def set_grad_mode(self, on: bool) -> None:
        """Call ``set_grad_enabled()``."""
        self.paddle.set_grad_enabled(on)

    def set_requires_grad(self, tensor: Tensor, flag: bool) -> None:
        """Set ``stop_gradient`` to the opposite."""
        tensor.stop_gradient = not flag
