"""The adapter for PyTorch on the CPU, with both of its sharing strategies.

A tensor of PyTorch moves to shared memory when it is pickled, so `encode` and `decode`
do nothing, and every operation is a line of plain PyTorch. The adapter claims what
PyTorch offers, whether PyTorch keeps the promise or not: the expectations have the
known deviations, each with a program that shows it.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from multiprocessing import reduction
from typing import Any

from sharedtensor_conformance.adapter import (
    NUMPY_DTYPES,
    Implementation,
    Index,
    Number,
    Tensor,
)
from sharedtensor_conformance.adapters.forging import Reduced, other_file
from sharedtensor_conformance.adapters.torch_like import TorchLike
from sharedtensor_conformance.adapters.torch_stubs import declared, folder

newest = Implementation(
    name="torch",
    operations="sharedtensor_conformance.adapters.torch:TorchOperations",
    claims=frozenset(
        {
            "core",
            "share",
            "identity",
            "views",
            "resize",
            "arrays",
            "lazy",
            "kinds",
            "grad",
            "modules",
            "drop-in",
            "spawn",
            "strategies",
            "strategy-fd",
            "strategy-fs",
            "manager",
            "lifetime",
            "faults",
            "forgery",
            "fault-table",
        }
    ),
    version="distribution:torch",
    strategies=("file_descriptor", "file_system"),
    dtypes=NUMPY_DTYPES,
    kinds=(
        "parameter",
        "buffer",
        "subclass",
        "slotted",
        "stateful",
        "wrapper",
        "sparse_coo",
        "sparse_coo_bool",
        "sparse_coo_dense_float64",
        "sparse_coo_uncoalesced_complex64",
        "sparse_coo_empty",
        "sparse_coo_empty_int64",
        "sparse_coo_dense_empty_complex64",
        "sparse_csr",
        "sparse_csr_dense_float64",
        "sparse_csr_empty_int64",
        "sparse_csc_complex64",
        "sparse_csc_dense_empty_float64",
        "sparse_bsr_float64",
        "sparse_bsr_empty_complex64",
        "sparse_bsc_int64",
        "sparse_bsc_dense_empty_bool",
        "sparse_csr_narrow",
        "sparse_csc_narrow_dense_float64",
        "sparse_bsr_narrow_int64",
        "sparse_bsc_narrow_empty",
        "quantized",
        "quantized_channels",
        "nested",
        "from_array",
        "from_buffer",
        "from_dlpack",
        "parameter_from_array",
        "negated",
        "meta",
    ),
    segment_pattern=r"torch_{pid}_.*",
    manager_pattern=r"torch_shm_manager",
    grace=10.0,
    deadline=10.0,
    preload=True,
)
"""The grace covers the two seconds that PyTorch's manager waits for new clients, and
those in which an interpreter with PyTorch ends on a busy machine."""

INSTALLED = folder()
conformance_adapter = replace(
    newest,
    dtypes=declared(newest.dtypes, INSTALLED),
    kinds=declared(newest.kinds, INSTALLED),
)
"""What is claimed of the installed release; of the newest one where none is."""


class TorchOperations(TorchLike):
    """The operations on tensors of PyTorch."""

    def __init__(self) -> None:
        self.torch = import_module("torch")
        self.multiprocessing = import_module("torch.multiprocessing")

    def enter_child(self, strategy: str) -> None:
        """Set the strategy, which does not cross spawn, and forgo threads of its own.

        A child forked after a parallel operation hangs in its first one.
        """
        self.torch.set_num_threads(1)
        self.multiprocessing.set_sharing_strategy(strategy)

    def make(self, values: list[Number], shape: Index, dtype: str) -> Tensor:
        """Return a new tensor."""
        return self.torch.tensor(values, dtype=self._dtype(dtype)).reshape(shape)

    def is_tensor(self, value: object) -> bool:
        """Return whether `value` is a tensor."""
        return isinstance(value, self.torch.Tensor)

    def dtype(self, tensor: Tensor) -> str:
        """Return the dtype; PyTorch's names are NumPy's."""
        return str(tensor.dtype).removeprefix("torch.")

    def values(self, tensor: Tensor) -> list[Number]:
        """Return all values, flat."""
        values: list[Number] = tensor.detach().flatten().tolist()
        return values

    def read(self, tensor: Tensor, index: Index) -> Number:
        """Return the value of one element."""
        value: Number = tensor.detach()[index].item()
        return value

    def write(self, tensor: Tensor, index: Index, value: Number) -> None:
        """Write one element."""
        element = self.torch.tensor(value, dtype=tensor.dtype)
        tensor.detach()[index] = element

    @cached_property
    def kinds(self) -> Any:
        """How tensors of the kinds are made, told and changed."""
        return import_module("sharedtensor_conformance.adapters.torch_kinds")

    def make_kind(self, kind: str) -> Tensor:
        """Return a new tensor of a kind."""
        return self.kinds.make(kind)

    def describe(self, tensor: Tensor) -> list[Any]:
        """Return everything that makes the tensor what it is."""
        described: list[Any] = self.kinds.describe(tensor)
        return described

    def change(self, tensor: Tensor, value: int) -> bool:
        """Write the first value in place, where it can be."""
        return bool(self.kinds.change(tensor, value))

    def reinterpret(self, tensor: Tensor, dtype: str) -> Tensor:
        """Return ``view(dtype)``."""
        return tensor.view(self._dtype(dtype))

    def array(self, tensor: Tensor) -> Any:
        """Return ``numpy()``."""
        return tensor.detach().numpy()

    def make_module(self, parameters: dict[str, list[float]]) -> Any:
        """Return a bare ``torch.nn.Module`` with these parameters."""
        module = self.torch.nn.Module()
        for name, values in parameters.items():
            data = self.torch.tensor(values, dtype=self.torch.float32)
            module.register_parameter(name, self.torch.nn.Parameter(data))
        return module

    def add_parameter(self, module: Any, name: str, tensor: Tensor) -> None:
        """Call ``register_parameter()``."""
        module.register_parameter(name, self.torch.nn.Parameter(tensor))

    def add_buffer(
        self, module: Any, name: str, values: list[float], persistent: bool
    ) -> None:
        """Call ``register_buffer()``."""
        data = self.torch.tensor(values, dtype=self.torch.float32)
        module.register_buffer(name, data, persistent=persistent)

    def buffers(self, module: Any) -> dict[str, Tensor]:
        """Return the ``named_buffers()``."""
        return dict(module.named_buffers(remove_duplicate=False))

    def tie(self, module: Any, name: str, other: str) -> None:
        """Register the parameter `name` as `other` too."""
        module.register_parameter(other, getattr(module, name))

    def parameters(self, module: Any) -> dict[str, Tensor]:
        """Return the parameters under all of their names."""
        return dict(module.named_parameters(remove_duplicate=False))

    def is_parameter(self, tensor: Tensor) -> bool:
        """Return whether the tensor is a ``torch.nn.Parameter``."""
        return isinstance(tensor, self.torch.nn.Parameter)

    def set_grad_mode(self, on: bool) -> None:
        """Call ``set_grad_enabled()``."""
        self.torch.set_grad_enabled(on)

    def forge(self, tensor: Tensor, how: str, excess: int) -> object:
        """Return an object that pickles like the tensor, except for one false value."""
        return Forgery(tensor, how, excess)

    def _dtype(self, name: str) -> Any:
        return getattr(self.torch, name)


class Forgery:
    """Pickles like a tensor of PyTorch, except for one false value."""

    def __init__(self, tensor: Tensor, how: str, excess: int) -> None:
        self.tensor: Any = tensor  # None once only its first handle is sent
        self.how = how
        self.excess = excess
        self.first: tuple[Any, ...] | None = None

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        """Reduce the tensor, with a false storage or window."""
        if self.first is not None:
            return self.first
        reductions = import_module("torch.multiprocessing.reductions")
        if self.tensor.is_cuda:  # of these only "again" is asked
            first: tuple[Any, ...] = reductions.reduce_tensor(self.tensor)
            self.first = first
            self.tensor = None
            return first
        rebuild, (kind, storage, metadata) = reductions.reduce_tensor(self.tensor)
        if self.how == "window":
            offset, *rest = metadata
            metadata = (offset + self.excess, *rest)
        else:
            rebuild_typed, (untyped, dtype) = reductions.reduce_typed_storage(storage)
            forged = Reduced(*self.reduce_storage(reductions, untyped))
            storage = Reduced(rebuild_typed, (forged, dtype))
        reduced = rebuild, (kind, storage, metadata)
        if self.how == "again":
            self.first, self.tensor = reduced, None
        return reduced

    def reduce_storage(self, reductions: Any, storage: Any) -> tuple[Any, ...]:
        """Return the reduced storage with a false handle."""
        rebuild, (kind, *handle) = reductions.reduce_storage(storage)
        if self.how == "size":
            handle[-1] += self.excess
        elif self.how == "truncated":
            handle = handle[: len(handle) // 2]
        elif self.how == "outside" and len(handle) == 2:
            handle[0] = _descriptor_of(other_file())
        elif self.how == "outside":
            path = other_file()
            weakref.finalize(self, os.unlink, path)
            handle[1] = b"/" + os.path.relpath(path, "/dev/shm").encode()
        return rebuild, (kind, *handle)


def _descriptor_of(path: str) -> Any:
    """Return what travels for the descriptor of a file, whose name is removed."""
    descriptor = os.open(path, os.O_RDWR)
    os.unlink(path)
    try:
        return reduction.DupFd(descriptor)
    finally:
        os.close(descriptor)
