"""Fix: a forked child is counted, has its own locks, and releases what it holds."""

from __future__ import annotations

import ctypes
import os
import threading
from contextlib import suppress
from importlib import import_module
from multiprocessing import process, util
from typing import Any

from torch_patches.segments import (
    count_of,
    names,
    path_of,
    watch_names,
)


def apply() -> None:
    """Restores LIFE-11, LIFE-22, FS-8, SHARE-12, THREAD-3.

    Adds handlers to `fork` and to the end of a process. Before a fork each storage with
    a name is counted once more, for the child: what this or its parent drops is then
    never the last while the other has it. A process of `multiprocessing` that ends
    gives back the counts of what it still holds, which its destructors never do. In the
    child the lock of ``torch.storage`` is made anew.

    A process that is killed, calls ``os._exit`` or becomes another program gives
    nothing back (LIFE-8, LIFE-20). A fork takes longer with each storage with a name.
    """
    watch_names()
    os.register_at_fork(before=_count_for_the_child, after_in_child=_renew_the_lock)
    util.register_after_fork(names, lambda _: _give_back_at_exit())
    if process.parent_process() is not None:
        _give_back_at_exit()


def _count_for_the_child() -> None:
    for storage, _ in names.storages():
        storage._shared_incref()


def _renew_the_lock() -> None:
    module: Any = import_module("torch.storage")
    module._share_memory_lock = threading.Lock()
    module._share_memory_map.clear()


def _give_back_at_exit() -> None:
    util.Finalize(None, _give_back, exitpriority=-100)


def _give_back() -> None:
    for storage, name in names.storages():
        # A destructor that runs after all would count down a second time.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(storage))
        storage._shared_decref()
        with suppress(OSError):
            if count_of(name) <= 0:
                os.unlink(path_of(name))
