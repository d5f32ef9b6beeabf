"""Fix: a storage is not moved while a NumPy array uses its memory."""

from __future__ import annotations

import weakref
from importlib import import_module
from typing import Any

from torch_patches.replacing import wrap

_arrays: dict[int, list[weakref.ref[Any]]] = {}
"""For the address of a storage's memory, the arrays over it that `numpy` has made."""


def apply() -> None:
    """Restores SHARE-10, by refusing.

    Wraps ``Tensor.numpy``, ``_share_fd_cpu_`` and ``_share_filename_cpu_``. Sharing
    moves the memory, and the array would point to what is freed. While an array is
    there that `numpy` made, or an array over that one, sharing raises.

    Arrays that a tensor was made from, and memory that is exported in another way, as
    by DLPack, are not seen.
    """
    torch = import_module("torch")
    wrap(torch.Tensor, "numpy", _numpy)
    wrap(torch.UntypedStorage, "_share_fd_cpu_", _share)
    wrap(torch.UntypedStorage, "_share_filename_cpu_", _share)


def _numpy(before: Any, tensor: Any, **options: Any) -> Any:
    array = before(tensor, **options)
    if tensor.device.type == "cpu" and not tensor.is_shared():
        place = tensor.untyped_storage().data_ptr()
        known = [one for one in _arrays.get(place, ()) if one() is not None]
        _arrays[place] = [*known, weakref.ref(array, lambda _: _forget(place))]
    return array


def _forget(place: int) -> None:
    if all(one() is None for one in _arrays.get(place, ())):
        _arrays.pop(place, None)


def _share(before: Any, storage: Any, *args: Any, **options: Any) -> Any:
    over_it = () if storage.is_shared() else _arrays.get(storage.data_ptr(), ())
    if any(one() is not None for one in over_it):
        raise RuntimeError(
            "a NumPy array shows the memory of this tensor, which sharing would move "
            "away from it: share the tensor first, or drop the array"
        )
    return before(storage, *args, **options)
