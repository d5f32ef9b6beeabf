"""The files of `file_system`: which storages have a file, and the count in each file.

A file begins with the number of its holders and future receivers, in 64 bytes; the
storage follows.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, cast

from torch_patches.replacing import wrap

HEADER = 64
NAME = re.compile(r"/torch_\d+_\d+_\d+")


class Names:
    """The storages of this process that have a name, each with its handle.

    A storage is known by its address, which no other gets while there is a weak
    reference to it.
    """

    def __init__(self) -> None:
        self.known: dict[int, tuple[Any, tuple[bytes, bytes]]] = {}
        self.limit = 128

    def add(self, storage: Any, manager: bytes, name: bytes) -> None:
        """Remember the handle of a storage."""
        reference = _reductions().StorageWeakRef(storage)
        self.known[storage._cdata] = reference, (manager, name)
        if len(self.known) > self.limit:
            for key, (one, _) in list(self.known.items()):
                if one.expired():
                    self.known.pop(key, None)
            self.limit = max(128, 2 * len(self.known))

    def has(self, storage: Any) -> bool:
        """Return whether a storage has a name."""
        found = self.known.get(storage._cdata)
        return found is not None and not found[0].expired()

    def storages(self) -> Iterator[tuple[Any, bytes]]:
        """Yield each storage that is there still, with its name."""
        untyped = import_module("torch").UntypedStorage
        for reference, (_, name) in list(self.known.values()):
            storage = untyped._new_with_weak_ptr(reference.cdata)
            if storage is not None:
                yield storage, name

    def of(self, storage: Any) -> tuple[bool, bool]:
        """Return whether a storage is shared, and whether it has a name.

        Where another thread is sharing it, the name is looked for when that is done: in
        between it would be shared and have no name yet.
        """
        is_shared = storage.is_shared()
        _wait_until_shared(storage)
        return is_shared, self.has(storage)


def _wait_until_shared(storage: Any) -> None:
    """Wait until no other thread is sharing a storage.

    Whoever takes the lock of ``torch.storage`` has to share it: who waits for that goes
    on without the lock. So this only waits.
    """
    module: Any = import_module("torch.storage")
    with module._share_memory_lock:
        sharing = module._share_memory_map.get(storage._cdata)
    if sharing is not None:
        with sharing:
            pass


def _one_by_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function that shares a storage wait until no other thread is doing so."""
    protected = import_module("torch.storage")._share_memory_lock_protected
    return cast(Callable[..., Any], protected(function))


names = Names()

_watched = False


def watch_names() -> None:
    """Have this process know its storages with names, from now on."""
    global _watched
    if _watched:
        return
    _watched = True
    torch = import_module("torch")
    untyped = torch.UntypedStorage
    wrap(untyped, "_share_filename_cpu_", _share_by_name)
    untyped._share_filename_cpu_ = _one_by_one(untyped._share_filename_cpu_)
    wrap(_reductions(), "rebuild_storage_filename", _rebuild_named)
    created = untyped._new_using_filename_cpu

    def create(cls: Any, size: int) -> Any:
        storage = created(size)
        storage._share_filename_cpu_()
        return storage

    untyped._new_using_filename_cpu = classmethod(create)


def _share_by_name(before: Any, storage: Any, *args: Any, **options: Any) -> Any:
    shared = before(storage, *args, **options)
    names.add(storage, *shared[:2])
    return shared


def _rebuild_named(
    before: Any, cls: Any, manager: bytes, name: bytes, *size: Any
) -> Any:
    storage = before(cls, manager, name, *size)
    names.add(getattr(storage, "_untyped_storage", storage), manager, name)
    return storage


def _reductions() -> Any:
    return import_module("torch.multiprocessing.reductions")


def path_of(name: bytes) -> str:
    """Return the path of the file with this name."""
    return "/dev/shm" + os.fsdecode(name)


def size_of(name: bytes) -> int:
    """Return how many bytes a storage with this name has.

    Raises:
        RuntimeError: it is no segment, or one of another user.
    """
    if not NAME.fullmatch(os.fsdecode(name)):
        raise RuntimeError(f"{name!r} is not the name of a segment")
    found = os.lstat(path_of(name))
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise RuntimeError(f"{path_of(name)} is not a segment of this user")
    return found.st_size - HEADER


_owed: list[tuple[bytes, bytes]] = []
"""The counts that could not be given back yet, as the process could map nothing."""


def give_back(manager: bytes, name: bytes) -> None:
    """Count a message down in a segment, which is removed where it was the last."""
    _owed.append((manager, name))
    settle()


def settle() -> None:
    """Give back what is owed, as far as that is possible now."""
    owed = _owed.copy()
    _owed.clear()
    for manager, name in owed:
        try:
            size = size_of(name)
        except (OSError, RuntimeError):  # it has gone, or is another's
            continue
        try:
            _count_down(manager, name, size)
        except (OSError, RuntimeError):
            _owed.append((manager, name))


def _count_down(manager: bytes, name: bytes, size: int) -> None:
    torch = import_module("torch")
    storage = _reductions().storage_from_cache(torch.UntypedStorage, name)
    if storage is None:
        new = torch.UntypedStorage._new_shared_filename_cpu
        storage = new(manager, name, size)
    storage._shared_decref()


def count_of(name: bytes) -> int:
    """Return how many hold a segment or are to receive it."""
    with open(path_of(name), "rb") as file:
        return int.from_bytes(file.read(4), "little", signed=True)
