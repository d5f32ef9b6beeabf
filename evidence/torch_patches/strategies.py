"""Fix: a storage is sent under the strategy under which it was shared.

It also returns a new set of strategies to each caller, so that a caller can change it.
"""

from __future__ import annotations

from importlib import import_module
from multiprocessing import reduction
from typing import Any

from torch_patches.replacing import wrap
from torch_patches.segments import names, watch_names


def apply() -> None:
    """Restores STRAT-1, STRAT-4, STRAT-5, FS-1.

    Wraps ``reductions.reduce_storage`` and ``UntypedStorage.share_memory_``, which ask
    for the strategy of the process. A storage that is shared already is copied by them
    where it was shared under the other one. These look at the storage first: it has a
    name if it was given one or received by one. So it stays where it is.

    A receiver of either sort is told by the message what it is, as before.

    Wraps ``torch.multiprocessing.get_all_sharing_strategies``, which returns the very
    set in which ``set_sharing_strategy`` looks names up.
    """
    watch_names()
    torch = import_module("torch")
    wrap(torch.multiprocessing, "get_all_sharing_strategies", _own_set)
    reductions = import_module("torch.multiprocessing.reductions")
    wrap(torch.UntypedStorage, "share_memory_", _share)
    wrap(reductions, "reduce_storage", _reduce)
    reduction.register(torch.UntypedStorage, reductions.reduce_storage)


def _own_set(before: Any) -> set[str]:
    return set(before())


def _share(before: Any, storage: Any, *args: Any, **options: Any) -> Any:
    if storage.device.type == "cpu" and storage.is_shared():
        return storage
    return before(storage, *args, **options)


def _reduce(before: Any, storage: Any) -> Any:
    multiprocessing = import_module("torch.multiprocessing")
    if storage.device.type != "cpu":
        return before(storage)
    shared, named = names.of(storage)
    if not shared or named == (multiprocessing.get_sharing_strategy() == "file_system"):
        return before(storage)
    reductions = multiprocessing.reductions
    if named:
        handle = storage._share_filename_cpu_()
        storage._shared_incref()
        key, rebuild = handle[1], reductions.rebuild_storage_filename
    else:
        descriptor, size = storage._share_fd_cpu_()
        handle = reduction.DupFd(descriptor), size
        key, rebuild = reductions.fd_id(descriptor), reductions.rebuild_storage_fd
    reductions.shared_cache[key] = reductions.StorageWeakRef(storage)
    return rebuild, (type(storage), *handle)
