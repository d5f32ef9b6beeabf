"""Fix: a program that a process starts inherits no descriptor of a storage."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from torch_patches.replacing import wrap


def apply() -> None:
    """Restores FD-5, and LIFE-23 under `file_descriptor`.

    Wraps ``UntypedStorage._share_fd_cpu_`` and ``rebuild_storage_fd``. C++ opens and
    duplicates the descriptor of a segment so that programs inherit it; once the storage
    has it, it is marked to be closed by `exec`.

    A thread that starts a program between the two calls still hands it on.
    """
    reductions = import_module("torch.multiprocessing.reductions")
    storage = import_module("torch").UntypedStorage
    wrap(storage, "_share_fd_cpu_", _share)
    wrap(reductions, "rebuild_storage_fd", _rebuild)


def _share(before: Any, storage: Any, *args: Any, **options: Any) -> Any:
    shared = before(storage, *args, **options)
    if storage.nbytes():  # an empty one has no descriptor
        os.set_inheritable(shared[0], False)
    return shared


def _rebuild(before: Any, *handle: Any) -> Any:
    storage = before(*handle)
    storage._share_fd_cpu_()
    return storage
