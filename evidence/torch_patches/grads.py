"""Fix: a tensor is sent with its grad."""

from __future__ import annotations

from importlib import import_module
from multiprocessing import reduction
from typing import Any

from torch_patches.replacing import wrap


def apply() -> None:
    """Restores GRAD-2, GRAD-3, GRAD-4, GRAD-8, GRAD-9.

    Wraps ``reductions.reduce_tensor``, which sends `requires_grad` and never `.grad`.
    The grad goes as the state of the pickled tensor, which is set once the tensor is
    there. So it is shared as any tensor of the message, arrives once though it is named
    beside its tensor, and may have a grad itself.

    Tensors of classes that PyTorch pickles in another way, its subclasses, are sent as
    before.
    """
    torch = import_module("torch")
    reductions = import_module("torch.multiprocessing.reductions")
    wrap(reductions, "reduce_tensor", _reduce)
    register(torch, reductions.reduce_tensor)


def register(torch: Any, reduce: Any) -> None:
    """Let tensors be pickled by this function."""
    for kind in (*torch._tensor_classes, torch.Tensor, torch.nn.Parameter):
        reduction.register(kind, reduce)


def _reduce(before: Any, tensor: Any) -> Any:
    reduced = before(tensor)
    if not tensor.is_leaf or tensor.grad is None:
        return reduced
    return (*reduced, tensor.grad, None, None, set_grad)


def set_grad(tensor: Any, grad: Any) -> None:
    """Give a received tensor its grad."""
    tensor.grad = grad
