"""Fix: a message that is not sent, or not rebuilt, is not counted in any segment."""

from __future__ import annotations

from importlib import import_module
from multiprocessing import reduction
from typing import Any

from torch_patches.cargo import Cargo, current
from torch_patches.replacing import wrap
from torch_patches.segments import give_back, settle


def apply() -> None:
    """Restores LIFE-18 and LIFE-19; with `messages`, FAIL-8.

    Wraps ``reductions.reduce_storage``, which counts a message in each segment by name
    that it has, and ``rebuild_storage_filename``, which takes the count back. The names
    travel beside the pickle as well. So they are known when it cannot be made or cannot
    be rebuilt, and the counts that nobody took are taken back. Descriptors that travel
    with a message need no more than that.

    A message that nobody reads stays counted (LIFE-13), since nobody notices.
    """
    torch = import_module("torch")
    reductions = import_module("torch.multiprocessing.reductions")
    Cargo.give_back = staticmethod(give_back)
    wrap(reductions, "reduce_storage", _reduce)
    wrap(reductions, "rebuild_storage_filename", _rebuild)
    reduction.register(torch.UntypedStorage, reductions.reduce_storage)


def _reduce(before: Any, storage: Any) -> Any:
    settle()
    rebuild, arguments = before(storage)
    counted = rebuild.__name__ == "rebuild_storage_filename"
    if counted and current.packed is not None:
        current.packed.names.append(arguments[1:3])
    return rebuild, arguments


def _rebuild(before: Any, cls: Any, manager: bytes, name: bytes, *size: Any) -> Any:
    settle()
    storage = before(cls, manager, name, *size)
    if current.rebuilt is not None and (manager, name) in current.rebuilt.names:
        current.rebuilt.names.remove((manager, name))
    return storage
