"""PyTorch on the CPU, under both of its sharing strategies.

A tensor of PyTorch pickles itself into shared memory, so `encode` and `decode` have
nothing to do and every operation is a line of plain PyTorch. What is claimed is what
PyTorch offers, whether it keeps the promise or not: the deviations that are known are
in the expectations, each with a program that shows it.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from importlib import import_module
from multiprocessing import reduction
from typing import Any

from sharedtensor_conformance.adapter import (
    Implementation,
    Index,
    Layout,
    Number,
    Tensor,
)

conformance_adapter = Implementation(
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
    segment_pattern=r"torch_{pid}_.*",
    manager_pattern=r"torch_shm_manager",
    grace=6.0,
    deadline=10.0,
    preload=True,
)
"""The grace covers the two seconds that PyTorch's manager waits for new clients."""


class TorchOperations:
    """What owner and peers do with tensors of PyTorch."""

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

    def shape(self, tensor: Tensor) -> Index:
        """Return the shape."""
        return tuple(tensor.shape)

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

    def encode(self, tensor: Tensor) -> object:
        """Return the tensor: it pickles itself."""
        return tensor

    def decode(self, message: object) -> Tensor:
        """Return the message: it is a tensor."""
        return message

    def release(self, tensor: Tensor) -> None:
        """Do nothing: the tensor goes with its last reference."""

    def share(self, tensor: Tensor) -> Tensor:
        """Call ``share_memory_()``."""
        return tensor.share_memory_()

    def is_shared(self, tensor: Tensor) -> bool:
        """Call ``is_shared()``."""
        return bool(tensor.is_shared())

    def clone(self, tensor: Tensor) -> Tensor:
        """Call ``clone()``."""
        return tensor.clone()

    def address(self, tensor: Tensor) -> int:
        """Return ``data_ptr()``."""
        return int(tensor.data_ptr())

    def view(self, tensor: Tensor, layout: Layout) -> Tensor:
        """Return a window by ``as_strided()``."""
        offset = tensor.storage_offset() + layout.offset
        return tensor.as_strided(layout.shape, layout.strides, offset)

    def strides(self, tensor: Tensor) -> Index:
        """Return the strides in elements."""
        return tuple(tensor.stride())

    def reinterpret(self, tensor: Tensor, dtype: str) -> Tensor:
        """Return ``view(dtype)``."""
        return tensor.view(self._dtype(dtype))

    def resize(self, tensor: Tensor, count: int) -> None:
        """Call ``resize_()``."""
        tensor.resize_(count)

    def array(self, tensor: Tensor) -> Any:
        """Return ``numpy()``."""
        return tensor.detach().numpy()

    def conjugate(self, tensor: Tensor) -> Tensor:
        """Return ``conj()``, which is lazy."""
        return tensor.conj()

    def requires_grad(self, tensor: Tensor) -> bool:
        """Return the flag."""
        return bool(tensor.requires_grad)

    def set_requires_grad(self, tensor: Tensor, flag: bool) -> None:
        """Set the flag."""
        tensor.requires_grad_(flag)

    def is_leaf(self, tensor: Tensor) -> bool:
        """Return whether the tensor is a leaf."""
        return bool(tensor.is_leaf)

    def grad(self, tensor: Tensor) -> Tensor | None:
        """Return ``.grad``."""
        return tensor.grad

    def set_grad(self, tensor: Tensor, grad: Tensor | None) -> None:
        """Set ``.grad``."""
        tensor.grad = grad

    def non_leaf(self, tensor: Tensor) -> Tensor:
        """Return a result computed from the tensor."""
        return tensor * 2

    def detach(self, tensor: Tensor) -> Tensor:
        """Return ``detach()``."""
        return tensor.detach()

    def make_module(self, parameters: dict[str, list[float]]) -> Any:
        """Return a bare ``torch.nn.Module`` with these parameters."""
        module = self.torch.nn.Module()
        for name, values in parameters.items():
            data = self.torch.tensor(values, dtype=self.torch.float32)
            module.register_parameter(name, self.torch.nn.Parameter(data))
        return module

    def add_buffer(self, module: Any, name: str, values: list[float]) -> None:
        """Call ``register_buffer()``."""
        module.register_buffer(
            name, self.torch.tensor(values, dtype=self.torch.float32)
        )

    def buffers(self, module: Any) -> dict[str, Tensor]:
        """Return the ``named_buffers()``."""
        return dict(module.named_buffers(remove_duplicate=False))

    def tie(self, module: Any, name: str, other: str) -> None:
        """Register the parameter `name` as `other` too."""
        module.register_parameter(other, getattr(module, name))

    def parameters(self, module: Any) -> dict[str, Tensor]:
        """Return the parameters under all of their names."""
        return dict(module.named_parameters(remove_duplicate=False))

    def state_dict(self, module: Any) -> dict[str, Tensor]:
        """Return the ``state_dict()``."""
        state: dict[str, Tensor] = module.state_dict()
        return state

    def share_module(self, module: Any) -> None:
        """Call the module's ``share_memory()``."""
        module.share_memory()

    def is_parameter(self, tensor: Tensor) -> bool:
        """Return whether the tensor is a ``torch.nn.Parameter``."""
        return isinstance(tensor, self.torch.nn.Parameter)

    def forge(self, tensor: Tensor, how: str) -> object:
        """Return the tensor in a form that pickles as it does, but for one lie."""
        return Forgery(tensor, how)

    def _dtype(self, name: str) -> Any:
        return getattr(self.torch, name)


class Forgery:
    """Pickles as a tensor of PyTorch, but for one lie."""

    def __init__(self, tensor: Tensor, how: str) -> None:
        self.tensor: Any = tensor  # None once only its first handle is sent
        self.how = how
        self.first: tuple[Any, ...] | None = None

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        """Reduce the tensor, with a storage or a window that lies."""
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
            metadata = (offset + (1 << 20), *rest)
        else:
            rebuild_typed, (untyped, dtype) = reductions.reduce_typed_storage(storage)
            forged = Reduced(*self.reduce_storage(reductions, untyped))
            storage = Reduced(rebuild_typed, (forged, dtype))
        reduced = rebuild, (kind, storage, metadata)
        if self.how == "again":
            self.first, self.tensor = reduced, None
        return reduced

    def reduce_storage(self, reductions: Any, storage: Any) -> tuple[Any, ...]:
        """Return the reduced storage with a handle that lies."""
        rebuild, (kind, *handle) = reductions.reduce_storage(storage)
        if self.how == "size":
            handle[-1] += 1 << 20
        elif self.how == "truncated":
            handle = handle[: len(handle) // 2]
        elif self.how == "outside" and len(handle) == 2:
            handle[0] = _descriptor_of(_other_file())
        elif self.how == "outside":
            path = _other_file()
            weakref.finalize(self, os.unlink, path)
            handle[1] = b"/" + os.path.relpath(path, "/dev/shm").encode()
        return rebuild, (kind, *handle)


class Reduced:
    """Pickles as it was told to."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        """Return what it was told."""
        return self.reduced


def _other_file() -> str:
    """Return the path of a file of this user that is no segment."""
    descriptor, path = tempfile.mkstemp()
    os.truncate(descriptor, 1 << 20)
    os.close(descriptor)
    return path


def _descriptor_of(path: str) -> Any:
    """Return what travels for the descriptor of a file, whose name is removed."""
    descriptor = os.open(path, os.O_RDWR)
    os.unlink(path)
    try:
        return reduction.DupFd(descriptor)
    finally:
        os.close(descriptor)
