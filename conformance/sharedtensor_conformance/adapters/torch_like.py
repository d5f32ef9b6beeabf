"""Operations that libraries with an interface like PyTorch's have in common.

Their tensors move to shared memory when they are pickled, so `encode` and `decode` do
nothing, and each operation is the method with the same meaning. An adapter inherits the
operations that it claims, and overrides those that its library does differently.
"""

from __future__ import annotations

from typing import Any

from sharedtensor_conformance.adapter import Index, Layout, Tensor


class CoreAndIdentity:
    """Operations of the profiles ``core`` and ``identity``."""

    def shape(self, tensor: Tensor) -> Index:
        """Return the shape."""
        return tuple(tensor.shape)

    def encode(self, tensor: Tensor) -> object:
        """Return the tensor: it pickles itself."""
        return tensor

    def decode(self, message: object) -> Tensor:
        """Return the message: it is a tensor."""
        return message

    def release(self, tensor: Tensor) -> None:
        """Do nothing: the last reference frees the tensor."""

    def address(self, tensor: Tensor) -> int:
        """Return ``data_ptr()``."""
        return int(tensor.data_ptr())


class Grad:
    """Operations of the profile ``grad``, but for those of the flag."""

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

    def set_grad_mode(self, on: bool) -> None:
        """Do nothing: there is no such mode."""


class TorchLike(CoreAndIdentity, Grad):
    """Operations of all profiles for tensors in host memory that are one call each."""

    def share(self, tensor: Tensor) -> Tensor:
        """Call ``share_memory_()``."""
        return tensor.share_memory_()

    def is_shared(self, tensor: Tensor) -> bool:
        """Call ``is_shared()``."""
        return bool(tensor.is_shared())

    def clone(self, tensor: Tensor) -> Tensor:
        """Call ``clone()``."""
        return tensor.clone()

    def view(self, tensor: Tensor, layout: Layout) -> Tensor:
        """Return a window by ``as_strided()``."""
        offset = tensor.storage_offset() + layout.offset
        return tensor.as_strided(layout.shape, layout.strides, offset)

    def strides(self, tensor: Tensor) -> Index:
        """Return the strides in elements."""
        return tuple(tensor.stride())

    def resize(self, tensor: Tensor, count: int) -> None:
        """Call ``resize_()``."""
        tensor.resize_(count)

    def conjugate(self, tensor: Tensor) -> Tensor:
        """Return ``conj()``, which is lazy."""
        return tensor.conj()

    def requires_grad(self, tensor: Tensor) -> bool:
        """Return the flag."""
        return bool(tensor.requires_grad)

    def set_requires_grad(self, tensor: Tensor, flag: bool) -> None:
        """Set the flag."""
        tensor.requires_grad_(flag)

    def state_dict(self, module: Any) -> dict[str, Tensor]:
        """Return the ``state_dict()``."""
        state: dict[str, Tensor] = module.state_dict()
        return state

    def share_module(self, module: Any) -> None:
        """Call the module's ``share_memory()``."""
        module.share_memory()
