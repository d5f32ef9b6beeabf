"""Fix: a shared storage refuses to grow before anything is changed."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

from torch_patches.replacing import wrap


def apply() -> None:
    """Restores SHARE-8.

    Wraps ``Tensor.resize_``, ``Tensor.resize_as_`` and ``UntypedStorage.resize_``. The
    number of bytes that is needed is compared with the storage first, so neither the
    allocator that a moved storage has no more is called, nor the new shape set.

    Operations that grow what they write to, by ``out=``, do so in C++ as before.
    """
    torch = import_module("torch")
    wrap(torch.Tensor, "resize_", _resize)
    wrap(torch.Tensor, "resize_as_", _resize_as)
    wrap(torch.UntypedStorage, "resize_", _resize_storage)


def _resize(before: Any, tensor: Any, *shape: Any, **options: Any) -> Any:
    sizes = options.get("size") or shape
    if len(sizes) == 1 and not isinstance(sizes[0], int):
        sizes = sizes[0]
    _refuse_growth(tensor, math.prod(sizes))
    return before(tensor, *shape, **options)


def _resize_as(before: Any, tensor: Any, other: Any, **options: Any) -> Any:
    _refuse_growth(tensor, other.numel())
    return before(tensor, other, **options)


def _refuse_growth(tensor: Any, count: int) -> None:
    if tensor.layout == import_module("torch").strided and tensor.is_shared():
        needed = (tensor.storage_offset() + count) * tensor.element_size()
        _refuse_more(tensor.untyped_storage(), needed)


def _resize_storage(before: Any, storage: Any, size: int) -> Any:
    if storage.is_shared():
        _refuse_more(storage, size)
    return before(storage, size)


def _refuse_more(storage: Any, needed: int) -> None:
    if needed > storage.nbytes():
        raise RuntimeError(
            f"the storage is shared and has {storage.nbytes()} bytes: it cannot grow "
            f"to {needed}; resize a copy of the tensor (clone())"
        )
