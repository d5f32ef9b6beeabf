"""Fix: the manager inherits nothing from the process that starts it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from torch_patches.replacing import wrap

SOCKET = "/torch-shm-dir-XXXXXX/manager.sock"
"""What the manager adds to the directory for the address of its socket."""

LONGEST = 100
"""The bytes of the longest address that it is given; the kernel takes 107."""

DIRECTORIES = "TMPDIR", "TMP", "TEMP", "TEMPDIR"

_started = False


def apply() -> None:
    """Restores MGR-4, MGR-6, MGR-7, MGR-8, and LOAD-5.

    Wraps ``_share_filename_cpu_``, whose first call in a process starts the manager by
    fork and exec in C++. For that call all descriptors are marked to be closed by
    `exec`, the standard streams that are closed are opened to `/dev/null`, and the
    variables for temporary files name a directory that the manager can use.

    A program that another thread starts in that moment inherits no descriptor either.
    The manager itself is the program that PyTorch ships: what it does once it runs is
    as before, and so is what C++ does without it.
    """
    storage = import_module("torch").UntypedStorage
    wrap(storage, "_share_filename_cpu_", _share)


def _share(before: Any, storage: Any, *args: Any, **options: Any) -> Any:
    global _started
    if _started:
        return before(storage, *args, **options)
    with _streams_open(), _nothing_inheritable(), _usable_directory():
        shared = before(storage, *args, **options)
    _started = True
    return shared


@contextmanager
def _streams_open() -> Iterator[None]:
    """Hold the numbers of standard streams that are closed."""
    opened = []
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        opened.append(descriptor)
    os.close(descriptor)
    try:
        yield
    finally:
        for descriptor in opened:
            os.close(descriptor)


@contextmanager
def _nothing_inheritable() -> Iterator[None]:
    """Mark all descriptors to be closed by `exec`, for a while."""
    marked = []
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the listing itself has one
            if os.get_inheritable(descriptor):
                os.set_inheritable(descriptor, False)
                marked.append(descriptor)
    try:
        yield
    finally:
        for descriptor in marked:
            with suppress(OSError):
                os.set_inheritable(descriptor, True)


@contextmanager
def _usable_directory() -> Iterator[None]:
    """Let the variables name a directory for the manager, for a while."""
    before = {name: os.environ[name] for name in DIRECTORIES if name in os.environ}
    named = next(iter(before.values()), "/tmp")
    usable = os.path.isdir(named) and os.access(named, os.W_OK | os.X_OK)
    if usable and len(os.fsencode(named + SOCKET)) <= LONGEST:
        yield
        return
    os.environ["TMPDIR"] = _other_directory()
    try:
        yield
    finally:
        del os.environ["TMPDIR"]
        os.environ.update(before)


def _other_directory() -> str:
    candidates: list[str] = tempfile._candidate_tempdir_list()  # type: ignore[attr-defined]
    for one in (*candidates, "/dev/shm"):
        fits = len(os.fsencode(one + SOCKET)) <= LONGEST
        if fits and os.path.isdir(one) and os.access(one, os.W_OK | os.X_OK):
            return one
    return "/tmp"
