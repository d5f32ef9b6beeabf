"""Fix: a handle is checked against its segment before it is used."""

from __future__ import annotations

import os
import stat
from importlib import import_module
from typing import Any

from torch_patches.cargo import Detached
from torch_patches.replacing import wrap
from torch_patches.segments import size_of


def apply() -> None:
    """Restores SEC-6, SEC-7, SEC-8.

    Wraps ``rebuild_storage_fd`` and ``rebuild_storage_filename``. Before anything is
    mapped they ask the kernel what the file is, whose, and how large. A file is a
    segment if it is a regular one in the file system of `/dev/shm`: of this user where
    it came by name, and without a name where it came as a descriptor. A storage that is
    here already is as large as its segment, so its handle is held to the same size.

    Between the look at a name and the mapping of it the file can be replaced by
    another one of this user.
    """
    reductions = import_module("torch.multiprocessing.reductions")
    wrap(reductions, "rebuild_storage_fd", _rebuild_descriptor)
    wrap(reductions, "rebuild_storage_filename", _rebuild_name)


def _rebuild_descriptor(before: Any, cls: Any, promise: Any, size: int) -> Any:
    descriptor = promise.detach()
    try:
        _refuse_smaller(_size_behind(descriptor), size)
    except BaseException:
        os.close(descriptor)
        raise
    return before(cls, Detached(descriptor), size)


def _size_behind(descriptor: int) -> int:
    found = os.fstat(descriptor)
    inside = found.st_dev == os.stat("/dev/shm").st_dev
    if not (inside and stat.S_ISREG(found.st_mode) and found.st_nlink == 0):
        raise RuntimeError("the descriptor in the message is not that of a segment")
    return found.st_size


def _rebuild_name(
    before: Any, cls: Any, manager: bytes, name: bytes, size: int, dtype: Any = None
) -> Any:
    torch = import_module("torch")
    element = 1 if dtype is None else torch._utils._element_size(dtype)
    _refuse_smaller(size_of(name), size * element)
    return before(cls, manager, name, size, dtype)


def _refuse_smaller(found: int, claimed: int) -> None:
    if not 0 <= claimed <= found:
        raise RuntimeError(
            f"the message claims {claimed} bytes of a segment that has {found}"
        )
