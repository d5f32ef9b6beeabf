"""Fix: a new file can be opened only by its user; a refused one leaves nothing."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from importlib import import_module
from typing import Any

from torch_patches.replacing import wrap
from torch_patches.segments import path_of

_NAMED = re.compile(r"</?(torch_\d+_\d+_\d+)>")


def apply() -> None:
    """Restores FAIL-3, FAIL-4, MGR-9; with `messages` and `refusals`, FAIL-8.

    Wraps ``_share_fd_cpu_``, ``_share_filename_cpu_``, ``_new_shared_fd_cpu`` and
    ``_new_shared_filename_cpu``. Where C++ has made or opened the file and cannot give
    it its size or map it, it raises and leaves the file, and a descriptor of it. What
    it has left is known by the name in the exception, or by the file; it is removed.
    A file that was made gets the mode 600, of which a mask may have taken something.

    An exception of C++ that names no new file leaves it.
    """
    storage = import_module("torch").UntypedStorage
    wrap(storage, "_share_fd_cpu_", _share)
    wrap(storage, "_share_filename_cpu_", _share_by_name)
    wrap(storage, "_new_shared_fd_cpu", _open)
    wrap(storage, "_new_shared_filename_cpu", _open_by_name)


def _share(before: Any, storage: Any, *args: Any, **options: Any) -> Any:
    try:
        return before(storage, *args, **options)
    except RuntimeError as error:
        for name in _NAMED.findall(str(error)):
            _remove(path_of(os.fsencode(f"/{name}")))
        raise


def _share_by_name(before: Any, storage: Any, *args: Any, **options: Any) -> Any:
    new = not storage.is_shared()
    shared = _share(before, storage, *args, **options)
    if new:
        os.chmod(path_of(shared[1]), 0o600)
    return shared


def _open(before: Any, descriptor: int, *size: Any) -> Any:
    try:
        return before(descriptor, *size)
    except RuntimeError:
        # Only C++ makes descriptors that programs inherit.
        for other in _descriptors_of(os.readlink(f"/proc/self/fd/{descriptor}")):
            if other != descriptor and os.get_inheritable(other):
                os.close(other)
        raise


def _open_by_name(before: Any, manager: bytes, name: bytes, *size: Any) -> Any:
    try:
        return before(manager, name, *size)
    except RuntimeError:
        for descriptor in _descriptors_of(path_of(name)):
            os.close(descriptor)
        raise


def _remove(path: str) -> None:
    """Close the descriptors of this process that lead to a file, and unlink it."""
    for descriptor in [*_descriptors_of(path), *_descriptors_of(f"{path} (deleted)")]:
        os.close(descriptor)
    with suppress(FileNotFoundError):
        os.unlink(path)


def _descriptors_of(path: str) -> list[int]:
    found, entries = [], []
    with suppress(OSError):  # there may be no descriptor left to list them by
        entries = os.listdir("/proc/self/fd")
    for entry in entries:
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{entry}") == path:
                found.append(int(entry))
    return found
